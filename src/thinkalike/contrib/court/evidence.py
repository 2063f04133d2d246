"""What the judges of a court look at: a source's states, its maps to the target, and the target's output after them.

All of a source is computed once, when the first judge asks for it; all of the target once for all sources.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.contrib.court.source import Setting, Source
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.evaluation.columns import interval_columns
from thinkalike.evaluation.forward import next_token_losses, states_onwards
from thinkalike.instruments.ruler.rungs import difference_interval, greatest_by_layer
from thinkalike.measures.closed_forms import least_squares
from thinkalike.measures.distances.comparators import weighted_tau
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.halved_moments import HalvedMoments, halves_of
from thinkalike.measures.losses import token_kl
from thinkalike.measures.massive_rows import massive
from thinkalike.measures.mlem.encoding_model import MLEM
from thinkalike.measures.mlem.importance import feature_importance
from thinkalike.measures.residual import ResidualStates
from thinkalike.measures.ridge import Predictor, both_ways, with_interval
from thinkalike.measures.seeds import seeded
from thinkalike.states.mixing import BAGS, CONTROLS, TokenMixing

SAMPLE, SAMPLES = 1024, 4  # tokens of measures of all pairs of tokens, and how many such sets they are averaged over
KINDS = ["numeric", "nominal", "nominal", "numeric", "numeric", "nominal", "nominal", "nominal"]  # of `token_features`
# Networks of local mixing. Bags are among them, as states lose only their leading components: of a whole bag of
# decay .9, .054 is left in source code, where the other networks have .049 at most.
MIXING = (*BAGS, *CONTROLS)
MORE = 1.25  # times what local mixing shares: a bag of another decay than those above shares 1.02 times as much
LATER_ROWS = 64  # of text, on which it is tried whether states move with later tokens
CLASSES = (str.isalpha, str.isdigit, str.isspace, str.isalnum)  # the first that holds; none of them: punctuation

Map = Callable[[Tensor], Tensor]


class Course(NamedTuple):
    """The target's output when it resumes from mapped states, as means over the predicted tokens of the report."""

    penalty: float  # loss minus the target's own, in nats
    kl: float  # of the target's own output from the stitched one's, in nats
    distances: list[float]  # |h - t| / |t| at the cut and after each later block, with t the target's own state


def batches(rows: Int[Tensor, "rows t"]) -> Sequence[Int[Tensor, "b t"]]:
    """Return the rows in parts that a model reads at once."""
    return rows.long().split(max(BATCH_TOKENS // rows.shape[1], 1))


def inner(states: Shaped[Tensor, "b t ..."]) -> Shaped[Tensor, " n ..."]:
    """Drop the first token of each row, which has no context, and the last one, which has no next."""
    return states[:, 1:-1].flatten(0, 1)


def inner_states(states: Callable[[Tensor], Sequence[Tensor]], rows: Int[Tensor, "rows t"]) -> list[Tensor]:
    """Return the states that a function gives of rows of tokens, each at the inner tokens, (n, d)."""
    by_batch = [[inner(state).cpu() for state in states(batch)] for batch in batches(rows)]
    return [torch.cat(parts) for parts in zip(*by_batch, strict=True)]


class Compared(NamedTuple):
    """The target's side of R² at those inner tokens of the report that are compared."""

    residual: ResidualStates  # takes token, position and linear mixing out of states
    beyond: Predictor  # of what is left of the target's states
    plain: Predictor  # of the target's states as they are, on the same rows
    mixing: Float[Tensor, "1 2 r"]  # R² of the target and the network of local mixing that shares most with it


@dataclass(frozen=True, eq=False)
class Bench:
    """A setting with all that is the same for every source."""

    setting: Setting
    _compared: dict[bytes, Compared] = field(default_factory=dict)

    @cached_property
    def own_states(self) -> Float[Tensor, "n d"]:
        """The target's states at the inner tokens of the report."""
        return inner_states(lambda rows: [self.setting.own(rows)], self.setting.report)[0]

    @cached_property
    def own_fit_states(self) -> Float[Tensor, "m d"]:
        """The target's states at the inner tokens of the rows to fit on."""
        return inner_states(lambda rows: [self.setting.own(rows)], self.setting.fit)[0]

    @cached_property
    def _mixing(self) -> dict[str, Float[Tensor, "n d"]]:
        """What mixes the target's embeddings, at the inner tokens of the report."""
        mixing = TokenMixing(self.setting.target)
        states = inner_states(lambda rows: mixing.residuals(rows, MIXING), self.setting.report)
        return dict(zip(MIXING, states, strict=True))

    @torch.no_grad()
    def compared(self, is_compared: Bool[Tensor, " n"]) -> Compared:
        """Return the target's side of R² at these inner tokens of the report, which is the same for most sources."""
        key = is_compared.numpy().tobytes()
        if key not in self._compared:
            self._compared[key] = self._target_side(is_compared)
        return self._compared[key]

    def _target_side(self, is_compared: Bool[Tensor, " n"]) -> Compared:
        rows = self.setting.report.long()
        positions = torch.arange(rows.shape[1]).expand_as(rows)
        documents = numbered_by_part(inner(self.setting.documents))
        bags = [self._mixing[name] for name in BAGS]
        residual = ResidualStates(inner(rows), documents, [inner(positions)], bags, is_compared)
        beyond = residual.predictor(self.own_states)
        controls = [both_ways(residual.predictor(states), beyond)[None] for states in self._mixing.values()]
        return Compared(residual, beyond, residual.plain_predictor(self.own_states), greatest_by_layer(controls))

    @cached_property
    def courses(self) -> list[tuple[list[Tensor], Tensor]]:
        """The target's own states at the cut and after each later block, and its losses, part by part."""
        target, layers = self.setting.target, range(self.setting.layer, self.setting.target.n_layers)
        found = []
        for rows in batches(self.setting.report):
            states = target.residuals(rows, layers)
            found.append((states, next_token_losses(target, [states[-1]], rows)[0]))
        return found

    @cached_property
    def token_features(self) -> Float[Tensor, "n f"]:
        """The features of the inner tokens of the report that an MLEM profile is of."""
        rows, tokenizer = self.setting.report.long(), self.setting.target.tokenizer
        words = {token: tokenizer.decode([token]) for token in rows.unique().tolist()}
        counts = self.setting.other.long().flatten().bincount(minlength=max(words) + 1)
        return token_features(rows, words, counts)

    @torch.no_grad()
    def course(self, source: Source, phi: Map) -> Course:
        """Return the target's output when it resumes from the states of a source through a map.

        The first token of each row keeps the target's own state, as maps are fitted on tokens with context.
        """
        setting, target = self.setting, self.setting.target
        sums: dict[str, Tensor] = {}
        for rows, (goals, losses) in zip(batches(setting.report), self.courses, strict=True):
            state = phi(source.residuals(rows, [0])[0]).to(target.device, target.dtype)
            entering = torch.cat([goals[0][:, :1], state[:, 1:]], 1)
            (states,) = states_onwards(target, [(setting.layer, entering)])
            apart = [(own - goal).norm(dim=-1) / goal.norm(dim=-1) for own, goal in zip(states, goals, strict=True)]
            ends = [each[-1][:, :-1].flatten(0, 1) for each in (states, goals)]
            loss, kl = next_token_losses(target, states[-1:], rows)[0], token_kl(ends[0], target.finish, ends[1])
            values = {"penalty": loss - losses, "kl": kl, **{str(n): each[:, :-1] for n, each in enumerate(apart)}}
            sums = {name: sums.get(name, 0) + value.double().sum() for name, value in values.items()}
        count = setting.report[:, 1:].numel()
        penalty, kl_mean, *distances = (float(value) / count for value in sums.values())
        return Course(penalty, kl_mean, distances)


class Evidence:
    """What is known of one source at a bench."""

    def __init__(self, source: Source, bench: Bench):
        self.source, self.bench, self.setting = source, bench, bench.setting

    def _source_states(self, rows: Int[Tensor, "rows t"]) -> Float[Tensor, "n d"]:
        return inner_states(lambda batch: self.source.residuals(batch, [0]), rows)[0]

    @cached_property
    def _report_states(self) -> Float[Tensor, "n d"]:
        return self._source_states(self.setting.report)

    @cached_property
    def is_compared(self) -> Bool[Tensor, " n"]:
        """Which inner tokens of the report are compared: all but the few whose states decide what is found."""
        return _not_massive(self._report_states, self.bench.own_states)

    @cached_property
    def states(self) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k e"]]:
        """The states of the source and of the target at the tokens that are compared."""
        return self._report_states[self.is_compared], self.bench.own_states[self.is_compared]

    @cached_property
    def samples(self) -> list[Int[Tensor, " n"]]:
        """Sets of the tokens that are compared, for measures of all pairs of tokens."""
        count = int(self.is_compared.sum())
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.setting.number("samples")))
        return [part for part in order.split(SAMPLE) if len(part) == min(SAMPLE, count)][:SAMPLES]

    @cached_property
    def token_features(self) -> Float[Tensor, "k f"]:
        """The features of the tokens that are compared, of which an MLEM profile is."""
        return self.bench.token_features[self.is_compared]

    @cached_property
    def later(self) -> float:
        """How much the source's states move with later tokens, see `later_share`."""
        return later_share(self.source, self.setting.fit)

    @cached_property
    @torch.no_grad()
    def columns(self) -> dict[str, float]:
        """What verdicts read beside the penalty, with 95 % intervals over documents of the report.

        `r2`: R² of the target's states from the source's; `r2_back`: of the source's states from the target's;
        `residual_r2`, `residual_r2_back`: the same beyond token, position and linear mixing of the earlier tokens;
        `mixing`: what local mixing and the target share beyond these, the mean of both ways;
        `beyond_mixing`: by how much more than `MORE` times that source and target share;
        `later`: see `later_share`.
        """
        compared = self.bench.compared(self.is_compared)
        plain = both_ways(compared.residual.plain_predictor(self._report_states), compared.plain)
        residual = both_ways(compared.residual.predictor(self._report_states), compared.beyond)
        mixing = compared.mixing.mean(1)
        estimates = {
            "r2": with_interval(plain[:1]),
            "r2_back": with_interval(plain[1:]),
            "residual_r2": with_interval(residual[:1]),
            "residual_r2_back": with_interval(residual[1:]),
            "beyond_mixing": difference_interval(residual.mean(0)[None] - MORE * mixing),
        }
        columns = {"later": self.later, "mixing": float(mixing[0, 0])}
        for name, estimate in estimates.items():
            columns |= {column: float(end[0]) for column, end in interval_columns(name, estimate).items()}
        return columns

    @property
    def r2(self) -> float:
        """R² of the states as they are, the mean of both ways."""
        return (self.columns["r2"] + self.columns["r2_back"]) / 2

    @property
    def residual_r2(self) -> float:
        """R² beyond token, position and linear mixing, as `measure=ruler` has it: the mean of both ways."""
        return (self.columns["residual_r2"] + self.columns["residual_r2_back"]) / 2

    @cached_property
    @torch.no_grad()
    def course(self) -> Course:
        """The target's output when it resumes from the map of least squares, its ridge chosen by cross-validation."""
        source, target = self._source_states(self.setting.fit), self.bench.own_fit_states
        is_fitted = _not_massive(source, target)
        pair = (0, self.setting.layer)
        moments = HalvedMoments([pair], both=False)
        halves = halves_of(torch.zeros(int(is_fitted.sum()), dtype=torch.long))
        moments.update({pair[0]: source[is_fitted]}, {pair[1]: target[is_fitted]}, halves)
        return self.bench.course(self.source, least_squares(moments, pair, ridge=None))


def _not_massive(source: Float[Tensor, "n d"], target: Float[Tensor, "n e"]) -> Bool[Tensor, " n"]:
    """Return which rows are not among the few that decide what is found of the states of either side."""
    outliers = massive([target, source])
    return torch.ones(len(target), dtype=torch.bool) if outliers is None else ~outliers


@torch.no_grad()
def later_share(source: Source, rows: Int[Tensor, "rows t"]) -> float:
    """Return the share of a source's states that moves where later tokens are replaced.

    In each of some rows, all tokens from a random place on are replaced by different ones. The share is the mean
    squared movement of the states before that place, less that of a second run on the same tokens, beside the median
    squared distance of states from their mean. It is the largest over distances to the place; exactly 0 for a causal
    source that draws nothing.
    """
    tokens = rows[:LATER_ROWS].long()
    length = tokens.shape[1]
    vocabulary, numbers = tokens.unique(return_inverse=True)
    different = vocabulary[(numbers + 1) % len(vocabulary)]
    # A source may leak at few places or after few tokens, so each row is changed from a place of its own on.
    first_replaced = torch.randint(1, length, (len(tokens), 1), generator=seeded(0))
    distance = first_replaced - torch.arange(length)
    is_before = distance > 0
    replaced = torch.where(is_before, tokens, different)

    def states_before(tokens: Int[Tensor, "b t"]) -> Float[Tensor, "n d"]:
        return source.residuals(tokens, [0])[0].cpu().double()[is_before]

    states = states_before(tokens)
    by_chance = (states_before(tokens) - states).square().sum(-1)
    movement = (states_before(replaced) - states).square().sum(-1) - by_chance
    distances = distance[is_before]
    sums = torch.zeros(length, dtype=movement.dtype).index_add(0, distances, movement)
    by_distance = sums / distances.bincount(minlength=length).clamp(min=1)
    size = (states - states.mean(0)).square().sum(-1).median()
    share = by_distance.max() / size.clamp(min=torch.finfo(size.dtype).tiny)
    return max(float(share), 0.0)


def token_features(
    rows: Int[Tensor, "b t"], words: Mapping[int, str], counts: Int[Tensor, " vocab"]
) -> Float[Tensor, "n f"]:
    """Return features of the tokens of rows, but of the first and the last of each.

    They are length, class, whether it begins a word, log frequency, place, the classes of the last two tokens, and
    whether the token was there before. `words` has the text of each token, `counts` how often other text has it.
    """
    known = rows.unique()
    place = torch.searchsorted(known, rows)
    looks = []  # length, number of the class, and whether it begins a word
    for text in (words[token] for token in known.tolist()):
        bare = text.strip() or text
        kind = next((n for n, holds in enumerate(CLASSES) if holds(bare)), len(CLASSES))
        looks.append((len(text), kind, text[:1].isspace()))
    length, sort, begins = torch.tensor(looks, dtype=torch.float32)[place].unbind(-1)
    earlier = (rows[:, :, None] == rows[:, None]).tril(-1).any(-1)
    before, two_before = (sort.roll(steps, 1) for steps in (1, 2))
    two_before[:, 1] = -1  # the second token has only one token before it
    places = torch.arange(rows.shape[1]).expand_as(rows)
    features = (length, sort, begins, counts[rows].add(1).log(), places, before, two_before, earlier)
    return torch.stack([each[:, 1:-1].flatten().float() for each in features], -1)


def profile_likeness(
    features: Float[Tensor, "n f"], source: Float[Tensor, "n d"], target: Float[Tensor, "n e"], seed: int
) -> float:
    """Return the weighted Kendall τ of the importance of features in two sets of states of the same tokens.

    It is 0 where no feature explains anything of one of them.
    """
    model = MLEM(kinds=KINDS, difference="scaled", seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which features are much the same is the same for every source
        try:
            profiles = feature_importance(model, features, [source, target], permutations=1, seed=seed).profile().value
            return float(weighted_tau(profiles[:1], profiles[1:]))
        except ValueError as error:
            if "constant" not in str(error):
                raise
            return 0.0
