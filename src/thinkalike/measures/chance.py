"""What chance gives: the null of a batch of layer pairs, whose documents change places, calibrated values and p."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Repetitions, Seed, Within, shown, takes_arrays
from thinkalike.measures import estimates
from thinkalike.measures.contract import AnyMeasure, BatchRows, Blocks, Pair, joined
from thinkalike.measures.estimates import FEWEST_EQUAL, FEWEST_GROUPS, PARTS, Estimate, RowGroups
from thinkalike.processes import counted

NO_ROOM = 1e-6  # between chance and the best value, in its unit: then the value says nothing
AT_HOME = 0.05  # share of rows in their own place up to which a permutation shows chance alone
TIE = 1e-9  # of values that are equal up to rounding, such as those of a permutation that moves nothing
STEP = 0x9E3779B97F4A7C15 - 2**64  # of the sequence; integers of torch are signed, and products wrap
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


@dataclass(frozen=True, eq=False)
class Chance:
    """The null of the values of l x m layer pairs: documents change places, in one batch.

    p and `largest` are of `balanced_rows`, or given the token of the similarities of different documents; they are NaN
    if those are of fewer than 8 documents, or given the token of documents worth fewer than 15 of equal length.

    Attributes:
        null: The mean value of permuted documents, of those permutations that leave next to no row where it was.
        calibrated: (value - null) / (best - null): 0 by chance, 1 for a layer with itself; also of distances.
        p: The share of all permutations, with the value itself, that are at least as close; ties by chance.
        p_of_largest: The same against the closest of all layer pairs of each permutation (Westfall & Young 1993), for a
            pair that was chosen because it is the closest.
        largest: The calibrated value of the closest pair, chance being the mean of the closest of each permutation.
        documents: How many documents change places.
    """

    null: Float[Tensor, "l m"]
    calibrated: Estimate
    p: Float[Tensor, "l m"]
    p_of_largest: Float[Tensor, "l m"]
    largest: float
    documents: int


def chance_of(
    estimate: Estimate,
    null: Float[Tensor, "l m"],
    tested: Float[Tensor, "p l m"],
    documents: int,
    best: float = 1.0,
    sign: int = 1,
) -> Chance:
    """Return values beside what chance gives, from `tested`, the value and then those of permutations.

    The sign of a distance is -1.
    """
    ends = torch.stack([(each - null) / (best - null) for each in (estimate.as_found, estimate.low, estimate.high)])
    tested = sign * tested if documents >= FEWEST_GROUPS else torch.full_like(tested, torch.nan)
    value, others = tested[0], tested[1:]
    closest = others.flatten(1).amax(1)
    level, p = float(closest.mean()), _share(others, value)
    return Chance(
        null,
        Estimate(ends[0], ends.amin(0), ends.amax(0)),
        p,
        _share(closest[:, None, None], value).maximum(p),  # draws of ties differ
        (float(value.max()) - level) / (sign * best - level),
        documents,
    )


def _share(chance: Float[Tensor, "p ..."], value: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Return (1 + #{chance > value} + u) / (1 + p), u in 0 .. #{chance = value} by a code of the chance values."""
    tie = TIE * chance.abs().amax(0).clamp(min=torch.finfo(chance.dtype).tiny)
    above, ties = (chance > value + tie).sum(0), ((chance - value).abs() <= tie).sum(0)
    order = torch.arange(len(chance), device=chance.device).view(-1, *[1] * (chance.ndim - 1))
    drawn = mixed(mixed((chance / tie).round().long() + order * STEP).sum(0)) % (1 + ties)
    drawn = drawn.where(ties < len(chance), ties)  # where all tie, nothing is found
    return ((1 + above + drawn).double() / (1 + len(chance))).where((value + tie).isfinite(), torch.nan)


# ---- documents change places: all rows of a document together, and the same documents in every part of the rows


def mixed(codes: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
    """Return the finaliser of splitmix64: every bit depends on every bit of the codes (Steele, Lea, Flood 2014)."""
    codes = (codes ^ shifted(codes, 30)) * FIRST
    codes = (codes ^ shifted(codes, 27)) * SECOND
    return codes ^ shifted(codes, 31)


def shifted(codes: Int[Tensor, "*b"], by: int) -> Int[Tensor, "*b"]:
    return (codes >> by) & ((1 << (64 - by)) - 1)  # with zeros put in; torch's own shift puts in the sign


def scrambled(numbers: Int[Tensor, "*n"], seed: int) -> Int[Tensor, "*n"]:
    return mixed(numbers.long() + (seed + 1) * STEP % 2**63)


def permuted_rows(documents: Annotated[Int[Tensor, " n"], Within(fewest=1)], seed: Seed) -> Int[Tensor, " n"]:
    """Return an order of rows in which whole documents changed places, at random; rows of one keep their order.

    If two models have nothing in common, documents are exchangeable and their rows are not, so documents are permuted
    as blocks (Winkler et al. 2015). They are laid end to end in an order that depends on their numbers and the seed
    alone. Those of one length are permuted exactly; others lie across two places, as far as their lengths differ. Rows
    of a single document are rotated by a random number.
    """
    home = documents.argsort(stable=True)  # rows document by document
    ranks = scrambled(documents, seed)
    moved = ranks.argsort(stable=True)
    if (documents == documents[0]).all():
        moved = home.roll(int(ranks[0]) % len(home))
    order = torch.empty_like(home)
    order[home] = moved
    return order


def permuted_within(documents: Int[Tensor, " kept"], groups: RowGroups, seed: int) -> Int[Tensor, " kept"]:
    """Return an order of rows in groups, in each of which documents changed places; see `permuted_rows`."""
    blocks = zip(groups.blocks(torch.arange(len(documents))), groups.blocks(documents.cpu()), strict=True)
    both = [each for places, owners in blocks for each in zip(places, owners, strict=True)]
    return torch.cat([places[permuted_rows(own, seed)] for places, own in both])


def balanced_rows(documents: Int[Tensor, " n"]) -> Int[Tensor, "d m"]:
    """Return the first m rows of each of the d documents that have as many, with the most rows d m of d ≥ 8 documents.

    Fewer than 8 documents all remain.
    """
    _, labels, counts = documents.unique(return_inverse=True, return_counts=True)
    sizes = counts.sort(descending=True).values
    kept = torch.arange(1, len(sizes) + 1, device=sizes.device) * sizes
    kept[: min(FEWEST_GROUPS, len(sizes)) - 1] = 0
    most = int(sizes[kept.argmax()])
    order = labels.argsort(stable=True)
    place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[labels[order]]
    return order[(counts[labels[order]] >= most) & (place < most)].view(-1, most)


def signed_similarities(
    similarities: Sequence[Sequence[Float[Tensor, "_ _ _"]]],
    sides: tuple[Sequence[int], Sequence[int]],
    documents: Sequence[Int[Tensor, "_ _"]],
    permutations: int,
) -> Float[Tensor, "a l m"]:
    """Return the correlation of the similarities of different documents in two layers, and of those with random signs.

    It is Σ K_ij L_ij / √(Σ K_ij² Σ L_ij²) over the rows i and j of one group and different documents, each less what
    its two rows have on average. Were it for chance alone, so would be Σ s_i s_j K_ij L_ij, with the sign s_i that is
    drawn for the document of row i: the wild bootstrap of a degenerate U-statistic over documents (Dehling & Mikosch
    1994; for HSIC Chwialkowski et al. 2014). What centring takes of the variance of signed sums is given back.

    Args:
        similarities: Of each layer, by size of groups, as are the documents of the rows.
        sides: The l and the m layers that are compared.
    """
    counts = len(sides[0]), len(sides[1])
    total = torch.zeros(permutations + 1, *counts, dtype=torch.float64)
    squares = torch.zeros(len(similarities), dtype=torch.float64)
    for size, owners in enumerate(documents):
        apart = (owners[:, :, None] != owners[:, None, :]).double()
        fit = torch.linalg.pinv(apart.sum(2).diag_embed() + apart, hermitian=True)
        centred = [_centred(layer[size].double(), apart, fit) for layer in similarities]
        squares += torch.stack([each.square().sum() for each in centred]).cpu()
        draws = [1 - 2 * (scrambled(owners, seed) & 1) for seed in range(permutations)]
        signs = torch.stack([torch.ones_like(owners), *draws], -1).double()  # (g, s, p)
        scales = torch.ones(len(owners), permutations + 1, dtype=torch.float64, device=owners.device)
        count = (1 / (owners.shape[1] - apart.sum(2))).sum(1).round()[:, None]  # of documents
        scales[:, 1:] = torch.where(count > 3, (count - 1) / (count - 3), 1).sqrt()  # what U-centring takes of signs
        for i, j in product(range(counts[0]), range(counts[1])):
            both = centred[sides[0][i]] * centred[sides[1][j]]
            total[:, i, j] += (((both @ signs) * signs).sum(1) * scales).sum(0).cpu()
    norms = squares.sqrt()
    return total / torch.outer(norms[list(sides[0])], norms[list(sides[1])])


def _centred(
    similarity: Float[Tensor, "g s s"], apart: Float[Tensor, "g s s"], fit: Float[Tensor, "g s s"]
) -> Float[Tensor, "g s s"]:
    between = similarity * apart
    own = (fit @ between.sum(2, keepdim=True))[..., 0]
    return between - apart * (own[:, :, None] + own[:, None, :])


# ---- the null of one batch: all layer pairs see the same permutations, so that the closest of them has one as well

Values = dict[Pair, Float[Tensor, "_ _ _"]]


@dataclass(frozen=True)
class BatchNull:
    """Compares the layers of a batch again, with the documents of the second model permuted.

    Attributes:
        measure: The measure, given the token that within the groups.
        layers: What it prepared of the rows of each different layer.
        within: The groups of rows of one token, None if all rows are compared.
        permutations: How often; see `Chance`.
    """

    measure: AnyMeasure
    layers: Sequence[Any]
    rows: BatchRows
    within: RowGroups | None
    blocks: Blocks
    permutations: int

    def of(self, values: Mapping[Pair, Float[Tensor, "_ _"]]) -> dict[Pair, dict[str, Tensor]]:
        """Return for each pair its mean value by chance, (l, m), and the value tested with its permutations.

        A ValueError says that layers are as close as can be by chance alone.
        """
        documents, within, measure = self.rows.documents, self.within, self.measure
        owners = documents.cpu() if within is None else documents[within.order].cpu()
        groups = within or RowGroups.whole(len(owners), owners.device)
        orders = torch.stack([permuted_within(owners, groups, seed) for seed in range(self.permutations)])
        home = (orders == torch.arange(len(owners))).double().mean(1)
        away = home <= home.min().clamp(min=AT_HOME)
        permuted = self._permuted(self.layers, orders, values)
        null = {pair: each[1:][away].mean(0) for pair, each in permuted.items()}
        if not measure.is_ratio and min(float((measure.best - each).abs().min()) for each in null.values()) < NO_ROOM:
            alike = f"by chance alone two layers are as close as can be, at {measure.best:g}"
            raise ValueError(f"{alike}: give more rows, on a command line by measure.tokens_per_batch")
        tested, moved = self._tested(owners, permuted, values)
        found = {"null": null, "tested": tested, "moved": dict.fromkeys(null, torch.tensor(moved))}
        return {pair: {name: each[pair] for name, each in found.items()} for pair in self.blocks.pairs}

    def _tested(
        self, owners: Int[Tensor, " kept"], permuted: Values, values: Mapping[Pair, Tensor]
    ) -> tuple[Values, int]:
        """Return what p is of, where documents are exchangeable, and how many documents change places."""
        documents, chosen = len(owners.unique()), balanced_rows(owners)
        if self.within:
            documents *= estimates.effective_number(owners.unique(return_counts=True)[1]) >= FEWEST_EQUAL
            similarities = [self.measure.similarities(layer) for layer in self.layers]
            owned, models = [*self.within.blocks(owners.to(similarities[0][0].device))], self.blocks.models
            signed = {
                (a, b): signed_similarities(similarities, (models[a], models[b]), owned, self.permutations)
                for a, b in self.blocks.pairs
            }
            return signed, int(documents)
        if documents < FEWEST_GROUPS or chosen.numel() == len(owners):
            return permuted, documents
        if chosen.numel() < self.measure.fewest:
            return permuted, 0
        rows = self.rows.of(chosen.flatten())  # as many of each document
        layers, owners = self.measure.prepared(rows.layers, rows.names, rows.order), rows.documents.cpu()
        orders = torch.stack([permuted_rows(owners, seed) for seed in range(self.permutations)])
        whole = self.measure.compare_all(layers, self.blocks._replace(pairs=list(values)))
        return self._permuted(layers, orders, whole), len(chosen)

    def _permuted(
        self, layers: Sequence[Any], orders: Int[Tensor, "p n"], values: Mapping[Pair, Float[Tensor, "_ _"]]
    ) -> Values:
        """Return the final value of each pair of models, and those with the rows of the second permuted."""
        measure, (models, pairs) = self.measure, self.blocks
        sources, targets = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        front, back = (sorted({place for model in side for place in models[model]}) for side in (sources, targets))
        own = [tuple(front.index(place) for place in models[model]) for model in sources]
        own += [tuple(len(front) + back.index(place) for place in models[model]) for model in targets]
        apart = Blocks(own, [(sources.index(a), len(sources) + targets.index(b)) for a, b in pairs])
        found: dict[Pair, list[Tensor]] = {pair: [values[pair].double()] for pair in pairs}
        for order in counted(orders.to(values[pairs[0]].device), "permutation"):
            moved = [measure.moved(layers[place], order) for place in back]
            across = measure.compare_all([*(layers[place] for place in front), *moved], apart)
            for pair, place in zip(pairs, apart.pairs, strict=True):
                found[pair].append(across[place].double())
        if not measure.is_ratio:
            return {pair: torch.stack(each) for pair, each in found.items()}
        finished = {}
        for pair, each in found.items():
            depth = len(each[0])
            joint = joined(values, pair).double().repeat(len(each), 1, 1)
            joint[:, :depth, depth:] = torch.stack(each)
            finished[pair] = measure.finish(joint)[:, :depth, depth:]
        return finished


# ---- any measure of two sets of features


class Calibrated(NamedTuple):
    """A value with its 95 % interval, and what it is by chance.

    Attributes:
        null: The mean value where whole groups of Y changed places.
        p: The share of permutations of groups, with the value itself, whose value is at least as large; ties by chance.
        groups: How many different groups there are.
    """

    value: float
    low: float
    high: float
    null: float
    p: float
    groups: int


@takes_arrays
def calibrate(
    function: Callable[[Tensor, Tensor], Any],
    X: Annotated[Float[Tensor, "n d"], Within(fewest=1)],
    Y: Float[Tensor, "n e"],
    groups: Int[Tensor, " n"],
    permutations: Repetitions = 99,
    seed: Seed = 0,
) -> Calibrated:
    """Return the value of any function of two sets of features, larger if more alike, with its interval and p.

    The interval is the jackknife that leaves out whole groups, those of one tenth at a time, beside as many rows at
    random. p is of as many rows of each group that has them, since only groups of equal length are exchangeable. Groups
    that are worth fewer than 15 of equal length (`effective_number`) have the interval (-∞, ∞), and where fewer than 8
    can be exchanged p is NaN; a warning says why.

    Args:
        function: Takes two tensors, (m, d) and (m, e), also of some of the rows, and returns a finite number. It gets
            copies, which it may change.
        X, Y: Row i of both is of stimulus i.
        groups: What each row belongs to, within which rows depend on each other, such as its document or sentence.

    >>> X, documents = torch.randn(60, 3), [n // 3 for n in range(60)]
    >>> calibrate(cka, X, 2 * X, documents, permutations=19).p
    0.05
    """
    estimates.check_groups(groups, len(X))
    numbers = estimates.numbered_by_part(groups)
    counts, parts = numbers.unique(return_counts=True)[1], numbers % PARTS
    value = torch.tensor(_value_of(function, X, Y), dtype=torch.float64)
    worth = estimates.effective_number(counts)
    is_enough = worth >= FEWEST_EQUAL
    if not is_enough:
        reason = estimates.why_no_interval(worth, len(counts), "groups", FEWEST_EQUAL)
        warnings.warn(reason, stacklevel=2)

    def without(parts: Int[Tensor, " n"]) -> Float[Tensor, " parts"]:
        rests = [parts != part for part in range(PARTS)] if is_enough else []
        return torch.tensor([_value_of(function, X[rest], Y[rest]) for rest in rests], dtype=torch.float64)

    scattered = parts[torch.randperm(len(parts), generator=estimates.seeded(seed)).to(parts.device)]
    found = estimates.jackknife(value, without(parts), without(scattered).mean(0), is_drawn=True)
    seeds = [seed * permutations + place for place in range(permutations)]
    orders = (permuted_rows(numbers, each) for each in counted(seeds, "permutation"))
    null = [_value_of(function, X, Y[order]) for order in orders]
    chosen = balanced_rows(numbers)
    p, rows = float("nan"), chosen.flatten()
    if len(chosen) >= FEWEST_GROUPS:
        own, x, y = numbers[rows], X[rows], Y[rows]
        tested = [_value_of(function, x, y)]
        tested += [_value_of(function, x, y[permuted_rows(own, each)]) for each in seeds]
        p = float(_share(*torch.tensor(tested, dtype=torch.float64).tensor_split([1])[::-1]))
    else:
        reason = f"no p-value: {len(chosen)} groups can be exchanged; p needs {FEWEST_GROUPS}"
        warnings.warn(reason, stacklevel=2)
    return Calibrated(float(value), float(found.low), float(found.high), sum(null) / len(null), p, len(counts))


def _value_of(function: Callable[[Tensor, Tensor], Any], X: Float[Tensor, "m d"], Y: Float[Tensor, "m e"]) -> float:
    """Return what a user's function says of copies of some rows; a ValueError if it is not a finite number."""
    value = function(X.clone(), Y.clone())
    try:
        scalar = value.item() if hasattr(value, "item") else value
        number = float("nan") if isinstance(scalar, str | bytes) else float(scalar)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = float("nan")
    if not math.isfinite(number):
        raise ValueError(f"function returns {shown(value)} for {len(X)} rows: it must return a finite number")
    return number
