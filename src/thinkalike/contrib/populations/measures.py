"""Populations of classifiers: losses of identity stitches, penalties between groups, where groups part, and clusters.

Values of pairs of models may be directed: the row is the source, the column the target. A model is never paired with
itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.arguments import refuse_nan
from thinkalike.errors import ModelError
from thinkalike.measures.estimates import Estimate, interval_around, student_t
from thinkalike.measures.seeds import seeded
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel


class ClassLosses(NamedTuple):
    """The losses of classifiers, and where they are right."""

    losses: Float[Tensor, "*s n"]  # cross-entropy of each example in nats, float64
    correct: Bool[Tensor, "*s n"]


class IdentityStitches(NamedTuple):
    """The losses and predictions of stitched classifiers, by source, target and cut."""

    losses: Float[Tensor, "s t c n"]  # cross-entropy of each example in nats, float64
    predicted: Int[Tensor, "s t c n"]  # place of the class among those of the data, int8


def predicted_classes(
    logits: Float[Tensor, "*s n c"], classes: Sequence[str], wanted: Sequence[str]
) -> Int[Tensor, "*s n"]:
    """Return the place in `wanted`, the classes of the data, of the likeliest of a model's own `classes`, as int8."""
    return _owners(classes, wanted).to(logits.device, torch.int8)[logits.argmax(-1)]


def class_losses(
    logits: Float[Tensor, "*s n c"], labels: Int[Tensor, " n"], classes: Sequence[str], wanted: Sequence[str]
) -> ClassLosses:
    """Return the cross-entropy and the correctness of each example.

    Where the data says no more than non-entailment, the likeliest of the model's own classes is the prediction, and
    the probabilities of neutral and contradiction are added: -log Σ p(c) over the classes c that the label stands for.
    Labels are places in `wanted`, the classes of the data. A model's `classes`, in the order of its logits, that are
    other ones are a ModelError.
    """
    owners = _owners(classes, wanted).to(logits.device)
    if not logits.isfinite().all():
        raise ModelError("a classifier's logits are not finite; run it in a wider dtype")
    labels = labels.to(logits.device)
    stands_for = owners[:, None] == torch.arange(len(wanted), device=logits.device)
    scores = logits.double().log_softmax(-1).unsqueeze(-1)
    joined = scores.where(stands_for, -torch.inf).logsumexp(-2)
    losses = -joined.gather(-1, labels.expand(joined.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return ClassLosses(losses, predicted_classes(logits, classes, wanted) == labels)


def _owners(classes: Sequence[str], wanted: Sequence[str]) -> Int[Tensor, " c"]:
    coarse = "non-entailment" in wanted
    named = ["non-entailment" if coarse and name in ("neutral", "contradiction") else name for name in classes]
    if {*named} != {*wanted}:
        raise ModelError(
            f"a model of the classes {list(classes)} cannot be asked for {list(wanted)}; name them in the order of its "
            "logits: model.classes=[entailment,neutral,contradiction]"
        )
    return torch.tensor([list(wanted).index(name) for name in named])


def check_labels(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    classes: Sequence[str],
    wanted: Sequence[str],
    name: str = "the classifier",
) -> float:
    """Return the accuracy on a few hundred examples, and refuse one that says that the classes are permuted.

    A good model with two of three classes exchanged is about at chance. So no other order of the classes may be right
    more often by three standard errors of the difference (McNemar 1947).
    """
    orders = list(itertools.permutations(classes))  # the first is the one that is stated
    correct = torch.stack([class_losses(logits, labels, order, wanted).correct for order in orders])
    accuracies = correct.double().mean(1)
    best = int(accuracies.argmax())
    gained, lost = (correct[best] & ~correct[0]).sum(), (correct[0] & ~correct[best]).sum()
    accuracy, least = float(accuracies[0]), 1 / len(wanted)
    if accuracy < least or gained - lost > 3 * (gained + lost).sqrt():
        found = f"{name} is right on {accuracy:.3f} of {len(labels)} examples (at least {least:.3f} is expected)"
        order = f"in the order {', '.join(orders[best])} it would be right on {accuracies[best]:.3f}"
        remedy = "check model.classes and the labels of the data"
        raise ModelError(f"{found} with the classes {', '.join(classes)}; {order}: {remedy}")
    return accuracy


@torch.no_grad()
def identity_stitches(
    models: Sequence[FrozenModel],
    tokens: Int[Tensor, "b t"],
    labels: Int[Tensor, " b"],
    wanted: Sequence[str],
    *,
    mask: Int[Tensor, "b t"] | None = None,
    types: Int[Tensor, "b t"] | None = None,
    at_once: int = 1,
) -> IdentityStitches:
    """Stitch every model's first blocks, up to each cut, to the later blocks, pooler and classes of every model.

    Each model runs once to the deepest cut, and from there only tails run: with L + 1 cuts a pair costs
    L (L + 1) / 2 passes through a block, where whole stitched models cost L (L + 1). For labels see `class_losses`.
    `at_once` sources run through a tail together, with their states at all cuts in memory. One at a time, results are
    those of whole stitched models to the bit; more are faster, and may differ in the last.
    """
    check_alike(models)
    cuts, found = [EMBED, *range(models[0].n_layers)], []
    for sources in (models[start : start + at_once] for start in range(0, len(models), at_once)):
        states = [model.residuals(tokens, cuts, mask, types) for model in sources]
        masks = None if mask is None else mask.repeat(len(sources), 1)
        outcomes = []
        for target in models:
            entering = (
                torch.cat([own.to(target.device, target.dtype) for own in cut]) for cut in zip(*states, strict=True)
            )
            tails = [target.tail(group, cut, masks) for group, cut in zip(entering, cuts, strict=True)]
            logits = torch.stack(tails, 1).unflatten(0, (len(states), -1)).transpose(1, 2)  # (s, cuts, b, c)
            losses = class_losses(logits, labels, target.classes, wanted).losses
            outcomes.append((losses.cpu(), predicted_classes(logits, target.classes, wanted).cpu()))
        found.append([torch.stack(values, 1) for values in zip(*outcomes, strict=True)])
    return IdentityStitches(*(torch.cat(values) for values in zip(*found, strict=True)))


def check_alike(models: Sequence[FrozenModel]) -> None:
    """Check that the identity can stitch any two of these models; a ModelError if they differ in depth or width."""
    first, *others = models
    for other in others:
        if (other.n_layers, other.d_model) != (first.n_layers, first.d_model):
            pair = f"{other.name} ({other.n_layers} layers of {other.d_model}) to {first.name} ({first.n_layers} of "
            raise ModelError(f"the identity does not stitch {pair}{first.d_model}); depth and width must be the same")


MOST = 20_000  # assignments of models to groups that a test looks at
FEWEST = 4  # models of a group, within which an interval is
ROUNDING = 1e-12  # of means: a difference that is nearer to 0 is at it


class Grouped(NamedTuple):
    """Means over pairs of models, see `grouped`; all but the last two have the shape (*s) of the values of a pair."""

    within: Estimate  # both models are of one group
    between: Estimate  # the models are of two groups, in both directions
    difference: Estimate  # within - between
    cells: Estimate  # (g, g, *s): source of one group and target of another; groups in the order of their first models
    directed: Estimate  # (g, g, *s): cell (a, b) - cell (b, b), the same targets under sources of their own group


def population_penalties(values: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return how much lower each value (source, target) is than the target's value with itself."""
    own = torch.arange(len(values))
    return values[own, own][None] - values


def flips(predicted: Int[Tensor, "m m c n"]) -> Float[Tensor, "m m c n"]:
    """Return 1 where a stitched model predicts another class than its target does alone, else 0.

    Signed penalties of accuracy may cancel between two directions; the share of flips, in [0, 1], counts both. It is 0
    for a target with itself.
    """
    own = torch.arange(len(predicted))
    return (predicted != predicted[own, own][None]).double()


def grouped(
    values: Float[Tensor, "m m *s"], groups: Sequence[Hashable], *, examples: bool = False, level: float = 0.95
) -> Grouped:
    """Return means over pairs within and between groups, with jackknife intervals that leave out models, never pairs.

    Pairs that share a model are not independent, so one model and all its pairs are left out at a time (Arvesen 1969).
    The squared errors Σ_g (n_g - 1) / n_g Σ (replicate - mean)² over models and var / n over examples add up, and t is
    Student's with one degree of freedom less than models in the smallest group. A group of two models has one pair and
    no spread: `directed` that compares with it has the interval (-∞, ∞). Within groups of fewer than `FEWEST` models
    intervals cover too little, and are (-∞, ∞). `difference` averages both directions, in which signed values may
    cancel, and `directed` keeps them apart. There are two groups or more, with two models or more in each. With
    `examples` the last axis of values holds examples, over which means and intervals are, too.
    """
    members = one_hot(_numbers(groups)).bool()
    without, sizes = torch.cat([torch.ones(1, len(members)), 1 - torch.eye(len(members))]), members.sum(0)
    means = _means(values.mean(-1) if examples else values, members, without)
    whole, replicates = means[0], means[1:]
    variance = sum((n - 1) * replicates[own].var(0, correction=0) for own, n in zip(members.T, sizes, strict=True))
    if examples:
        variance = variance + _means(values, members, without[:1])[0].var(-1) / values.shape[-1]
    half = student_t(level, int(sizes.min()) - 1) * variance.sqrt().nan_to_num(torch.inf)
    few, g = sizes < FEWEST, len(sizes)
    half[0] = torch.where(few.any(), torch.inf, half[0])
    half[3 : 3 + g**2 : g + 1][few] = torch.inf
    kinds = interval_around(whole, half)
    cells, directed = (
        Estimate(*(end.unflatten(0, (len(sizes), len(sizes))) for end in part))
        for part in (kinds[3 : 3 + len(sizes) ** 2], kinds[3 + len(sizes) ** 2 :])
    )
    return Grouped(kinds[0], kinds[1], kinds[2], cells, directed)


def onset(curve: Estimate, least: float = 0.0) -> int | None:
    """Return the first index of a curve of differences whose interval excludes 0, in [0, l - 1], or None if none does.

    The intervals must hold for all l indices together, such as those of `grouped(..., level=1 - 0.05 / l)`
    (Bonferroni); then a curve of pure noise has an onset in at most 5 % of draws. More models or examples make smaller
    differences visible, so an onset depends on their number unless the interval must exclude all values from -least to
    least. An end of an interval that is NaN is a ValueError.
    """
    refuse_nan(torch.stack([curve.low, curve.high]), "the interval")
    places = ((curve.low > least + ROUNDING) | (curve.high < -least - ROUNDING)).nonzero()
    return int(places[0]) if len(places) else None


def _means(
    values: Float[Tensor, "m m *s"], members: Bool[Tensor, "m g"], weights: Float[Tensor, "r m"]
) -> Float[Tensor, "r k *s"]:
    """Return the values of `Grouped` for r weightings of the models: k = 3 + 2 g² numbers for g groups."""
    values = values.double().clone()
    values.diagonal().fill_(0)  # a model with itself is no pair, and may be NaN
    kinds, weights = _kinds(members).to(values.device), weights.to(values)
    products = torch.einsum("ri,rj,kij->rkij", weights, weights, kinds)
    sums = torch.einsum("rkij,ij...->rk...", products, values)
    means = sums / products.sum((2, 3)).view(*sums.shape[:2], *[1] * (sums.ndim - 2))
    within, between, cells = means[:, :1], means[:, 1:2], means[:, 2:]
    own, square = torch.arange(members.shape[1]), cells.unflatten(1, (members.shape[1], -1))
    directed = square - square[:, own, own][:, None]
    directed[:, own, own] = 0  # also where a group of two models, one left out, has no pair
    return torch.cat([within, between, within - between, cells, directed.flatten(1, 2)], 1)


def _kinds(members: Bool[Tensor, "m g"]) -> Float[Tensor, "k m m"]:
    """Return which pairs are within a group, between groups, and in each cell (source group, target group)."""
    sizes = members.sum(0)
    if len(sizes) < 2 or sizes.min() < 2:
        raise ValueError(f"groups of {sizes.tolist()} models: give two groups or more, with two models or more in each")
    within = (members[:, None] & members).any(-1)
    cells = members.T[:, None, :, None] & members.T[None, :, None, :]
    return torch.cat([within[None], ~within[None], cells.flatten(0, 1)]).double() * (1 - torch.eye(len(members)))


def symmetric(penalties: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return (P + Pᵀ) / 2: penalties are directed, and distances are not."""
    return (penalties + penalties.transpose(0, 1)) / 2


def cluster(distances: Float[Tensor, "m m"], k: int) -> Int[Tensor, " m"]:
    """Return the cluster of each model, in 0..k-1: the two of least mean distance merge until k are left.

    Distances that are NaN or not symmetric, or a k that is not in 1..m, are a ValueError.
    """
    if not torch.allclose(distances, distances.T):
        raise ValueError("distances must be symmetric and not NaN; `symmetric` gives the mean of two directions")
    from sklearn.cluster import AgglomerativeClustering

    linkage = AgglomerativeClustering(k, metric="precomputed", linkage="average")
    return torch.from_numpy(linkage.fit_predict(distances.double().cpu().numpy()))


def adjusted_rand_index(labels: Int[Tensor, " m"], groups: Sequence[Hashable]) -> float:
    """Return the adjusted Rand index (Hubert & Arabie 1985, eq. 5): 1 for equal partitions, 0 on average by chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(_numbers(groups).tolist(), labels.tolist()))


def adjusted_rand_index_p(labels: Int[Tensor, " m"], groups: Sequence[Hashable], *, seed: int = 0) -> float:
    """Return the p-value of `adjusted_rand_index` under permutations of the groups, in (0, 1].

    It is the share of distinct assignments of the models to groups of these sizes whose index is at least as high: of
    all assignments, if there are at most 20,000, which makes it exact; else of 20,000 random ones,
    (1 + count) / (1 + draws) (Phipson & Smyth 2010). Two groups of six have 924 assignments, two of them perfect, so
    that p is at least 0.0022.

    With given sizes of clusters and groups the index rises with Σ n_ij² alone, n_ij the number of models of cluster i
    in group j, a whole number without rounding.
    """
    known = _numbers(groups)
    sizes = known.bincount().tolist()
    if math.factorial(len(known)) // math.prod(map(math.factorial, sizes)) <= MOST:
        assigned, extra = torch.tensor(list(_assignments(sizes))), 0
    else:
        draws = torch.rand(MOST, len(known), generator=seeded(seed))
        assigned, extra = known[draws.argsort(1)], 1
    as_good = _together(assigned, labels) >= _together(known[None], labels)
    return (int(as_good.sum()) + extra) / (len(assigned) + extra)


def _numbers(groups: Sequence[Hashable]) -> Int[Tensor, " m"]:
    names = list(dict.fromkeys(groups))
    return torch.tensor([names.index(group) for group in groups])


def _assignments(left: Sequence[int]) -> Iterator[list[int]]:
    """Yield every distinct order of models' group numbers, given how many models of each group are left."""
    if not any(left):
        yield []
    for group, count in enumerate(left):
        if count:
            fewer = [*left[:group], count - 1, *left[group + 1 :]]
            yield from ([group, *others] for others in _assignments(fewer))


def _together(assigned: Int[Tensor, "r m"], labels: Int[Tensor, " m"]) -> Int[Tensor, " r"]:
    """Return Σ n_ij² of each assignment, n_ij the number of models of cluster i in group j."""
    clusters = one_hot(labels.unique(return_inverse=True)[1])
    return torch.einsum("rmg,mk->rgk", one_hot(assigned), clusters).square().sum((1, 2))
