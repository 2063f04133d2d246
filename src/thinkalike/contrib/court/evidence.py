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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.contrib.court.likeness import LikenessSums, output_roots
from thinkalike.contrib.court.source import Setting, Source
from thinkalike.contrib.court.tokens_alone import (
    TargetBatch,
    TargetReader,
    Untrained,
    inner,
    later_shares,
    source_states,
)
from thinkalike.data.corpus import TokenRows
from thinkalike.evaluation.language import BATCH_TOKENS, next_token_losses, states_onwards
from thinkalike.measures.closed_forms import least_squares
from thinkalike.measures.distances.comparators import weighted_tau
from thinkalike.measures.estimates import Estimate, effective_number, massive, numbered_by_part
from thinkalike.measures.losses import token_kl
from thinkalike.measures.mlem.encoding_model import MLEM
from thinkalike.measures.mlem.importance import feature_importance
from thinkalike.measures.residual import ResidualStates
from thinkalike.measures.ridge import both_ways
from thinkalike.states.mixing import BAGS, TokenMixing

SAMPLE, SAMPLES = 1024, 4  # tokens of measures of all pairs of tokens, and how many such sets they are averaged over
KINDS = ["numeric", "nominal", "nominal", "numeric", "numeric", "nominal", "nominal", "nominal"]  # of `token_features`
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


@dataclass(frozen=True, eq=False)
class Bench:
    """A setting with all that is the same for every source."""

    setting: Setting
    _untrained: dict[int, Untrained] = field(default_factory=dict)

    @property
    def rows(self) -> TokenRows:
        """The rows to fit on, as of one document."""
        return TokenRows(self.setting.fit, torch.zeros_like(self.setting.fit))

    @cached_property
    def fit(self) -> list[TargetBatch]:
        return self._read(self.rows, is_fit=True)

    @cached_property
    def report(self) -> list[TargetBatch]:
        return self._read(TokenRows(self.setting.report, self.setting.documents))

    @torch.no_grad()
    def _read(self, rows: TokenRows, is_fit: bool = False) -> list[TargetBatch]:
        return [self._reader.beside(each, {}) for each in self._reader.batches(rows, is_fit)]

    @cached_property
    def _reader(self) -> TargetReader:
        return TargetReader(self.setting.target, [self.setting.layer], self.setting.fit)

    @torch.no_grad()
    def untrained(self, width: int) -> Untrained:
        """Return what networks without training share with the target, beside sources whose states have this width."""
        if width not in self._untrained:
            found = Untrained(self._reader.before, [self.setting.layer], width, self.roots)
            for parts, add in ((self.fit, found.fit), (self.report, found.judge)):
                for part in parts:
                    add(part)
            self._untrained[width] = found
        return self._untrained[width]

    @cached_property
    def roots(self) -> dict[int, Tensor]:
        return output_roots(self.setting.target, [self.setting.layer], self.setting.fit)

    @cached_property
    def courses(self) -> list[tuple[list[Tensor], Tensor]]:
        """The target's own states at the cut and after each later block, and its losses, part by part."""
        target, layers = self.setting.target, range(self.setting.layer, self.setting.target.n_layers)
        found = []
        for rows in batches(self.setting.report):
            states = target.residuals(rows, layers)
            found.append((states, next_token_losses(target, [states[-1]], rows)[0]))
        return found

    def at_report(self, states: Callable[[Tensor], Sequence[Tensor]]) -> list[Float[Tensor, "n _"]]:
        """Return the states that a function gives of rows of tokens, each at the inner tokens of the report."""
        found = zip(*(states(rows) for rows in batches(self.setting.report)), strict=True)
        return [torch.cat([inner(part).cpu() for part in own]) for own in found]

    @cached_property
    def own_states(self) -> Float[Tensor, "n d"]:
        """The target's states at the inner tokens of the report."""
        return self.at_report(lambda rows: [self.setting.own(rows)])[0]

    @cached_property
    def mixing(self) -> list[Float[Tensor, "n d"]]:
        """Bags of the target's embeddings at the inner tokens of the report."""
        mixing = TokenMixing(self.setting.target)
        return self.at_report(lambda rows: mixing.residuals(rows, list(BAGS)))

    def residual(self, is_compared: Bool[Tensor, " n"]) -> ResidualStates:
        """Return what takes token, position and linear mixing out of states at these inner tokens of the report."""
        rows = self.setting.report.long()
        positions = torch.arange(rows.shape[1]).expand_as(rows)
        documents = numbered_by_part(inner(self.setting.documents))
        return ResidualStates(inner(rows), documents, [inner(positions)], self.mixing, is_compared)

    @cached_property
    def samples(self) -> list[Int[Tensor, " n"]]:
        count = sum(len(part.parts) for part in self.report)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.setting.number("samples")))
        return [part for part in order.split(SAMPLE) if len(part) == min(SAMPLE, count)][:SAMPLES]

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

    def _states(self, batch: TargetBatch) -> dict[int, Tensor]:
        states = source_states(self.source, batch, [0])
        return {layer: inner(each) for layer, each in states.items()}

    @cached_property
    def states(self) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n e"]]:
        """The states of the source and of the target at the inner tokens of the report."""
        parts, layer = self.bench.report, self.setting.layer
        return torch.cat([self._states(part)[0] for part in parts]), torch.cat([part.own[layer] for part in parts])

    @cached_property
    @torch.no_grad()
    def _sums(self) -> LikenessSums:
        sums = LikenessSums([(0, self.setting.layer)], self.bench.roots)
        for parts, add in ((self.bench.fit, sums.fit), (self.bench.report, sums.judge)):
            for part in parts:
                add(part, self._states(part))
        return sums

    @cached_property
    def likeness(self) -> dict[str, Estimate]:
        """The measures of `Likeness` by their names, on the report, of directions that are fitted on the fit rows."""
        setting, source = self.setting, self.source
        later = later_shares(source, self.bench.rows, [0])
        untrained = self.bench.untrained(source.d_model)
        worth = effective_number(setting.documents.unique(return_counts=True)[1])
        found = self._sums.result(worth, untrained, later)
        return {name: estimate[0] for name, estimate in found.measures.items()}

    @cached_property
    @torch.no_grad()
    def residual_r2(self) -> float:
        """Return R² beyond token, position and linear mixing, as `measure=ruler` has it: the mean of both ways."""
        own = self.bench.own_states
        (states,) = self.bench.at_report(lambda rows: self.source.residuals(rows, [0]))
        outliers = massive([own, states])
        is_compared = torch.ones(len(own), dtype=torch.bool) if outliers is None else ~outliers
        residual = self.bench.residual(is_compared)
        return float(both_ways(residual.predictor(states), residual.predictor(own))[:, 0].mean())

    @cached_property
    def course(self) -> Course:
        """The target's output when it resumes from the map of least squares, its ridge chosen by cross-validation."""
        return self.bench.course(self.source, least_squares(self._sums.plain, (0, self.setting.layer), ridge=None))


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
