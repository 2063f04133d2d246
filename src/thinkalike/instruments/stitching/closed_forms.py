"""The closed forms of a stitching job: maps from the moments of both models' states."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from thinkalike.evaluation.moments import state_moments
from thinkalike.evaluation.token_means import MOST_TOKENS, BigramMeans, TokenMeans
from thinkalike.instruments.stitching.setting import StitchSetting
from thinkalike.measures import closed_forms
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.halved_moments import HalvedMoments
from thinkalike.measures.moments import PairStatistics
from thinkalike.memory import free_cached_memory
from thinkalike.processes import counted
from thinkalike.stitches.kinds import CLOSED
from thinkalike.training.stitching import Fit


class ClosedForms:
    """The affine maps of all layer pairs of a setting in closed form.

    Args:
        setting: The models and their layer pairs.
        moments: The moments of both models' states, if another pass has gathered them. Otherwise
            they are gathered when a map is first asked for.
    """

    def __init__(self, setting: StitchSetting, moments: HalvedMoments | None = None):
        self.setting = setting
        self._known_moments = moments

    @cached_property
    def moments(self) -> HalvedMoments:
        """The second moments of both models' states on the fitting text.

        Unless they were passed to the constructor, both models read the text at the first access.
        """
        if self._known_moments:
            return self._known_moments
        setting = self.setting
        return state_moments(
            setting.source,
            setting.target,
            setting.layer_pairs,
            setting.rows_of_closed_forms,
            setting.budget,
        )

    def maps(self, kind: str, *, bias: bool = True) -> list[AffineMap]:
        """Return the closed-form map of every layer pair.

        Args:
            kind: "least_squares", "reduced_rank", "procrustes" (an isometry), or "bias" (a
                constant that is added to the states).
            bias: Whether the map has a constant; for "bias" this has no effect.

        Raises:
            ValueError: The kind is none of these.
        """
        moments = self.moments
        config = self.setting.config
        maps = []
        for pair in counted(self.setting.layer_pairs, "closed form"):
            if kind == "least_squares":
                solution = closed_forms.least_squares(moments, pair, config.ridge, bias)
            elif kind == "reduced_rank":
                solution = closed_forms.reduced_rank(
                    moments, pair, config.rank, config.ridge, bias
                )
            elif kind == "procrustes":
                solution = closed_forms.procrustes(moments, pair, bias=bias)
            elif kind == "bias":
                solution = closed_forms.bias_only(moments, pair)
            else:
                raise ValueError(f"kind={kind!r} is not one of {', '.join(CLOSED)}")
            maps.append(solution)
        return maps

    @cached_property
    def starts(self) -> list[AffineMap]:
        """The maps that training starts from, one per layer pair.

        They are closed-form maps, and have no constant with `stitch=linear`, whose maps have none.
        """
        has_constant = self.setting.config.kind != "linear"
        return self.maps(self.setting.config.init, bias=has_constant)

    def statistics_read_by(self, fit: Fit) -> PairStatistics:
        """Return the moments of the states that a stitch reads, as the source of a layer pair.

        A stitch from the target into itself reads the target's layer of some layer pair. The
        statistics of that pair are then returned with source and target exchanged.

        Args:
            fit: The stitch. It reads the states of the model `fit.reads` after block `fit.layer`.
        """
        for pair in self.setting.layer_pairs:
            source_layer, _ = pair
            if fit.reads is self.setting.source and fit.layer == source_layer:
                return self.moments.of(pair)
        # The stitch is one from the target into itself.
        for pair in self.setting.layer_pairs:
            _, target_layer = pair
            if fit.layer == target_layer:
                return self.moments.of(pair).reversed
        raise AssertionError(f"no layer pair has the layer that {fit} reads")


class FitStatistics(NamedTuple):
    """What one pass over the text to fit on gathers of the states of both models."""

    moments: HalvedMoments | None
    """The moments of closed forms; None: the job has no closed forms."""

    means: TokenMeans
    """The target's mean state of each token; with controls also that of each pair of tokens."""


def gather_statistics(setting: StitchSetting) -> FitStatistics:
    """Read the fitting text, for closed forms and for the target's mean state of each token.

    A row that both need is read once by the target. Without closed forms, the source reads
    nothing. With controls, the mean states of pairs of tokens are computed, too.
    """
    target = setting.target
    tokens = setting.corpus.fit.tokens  # (rows, t)
    means_class = TokenMeans
    if setting.config.controls:
        means_class = BigramMeans
    # At first no rows have been read. Only tokens of the evaluation text need a mean.
    no_rows = tokens[:0]
    means = means_class(target, setting.target_layers, no_rows, setting.corpus.report.tokens)

    moments = None
    rows_read = 0
    if setting.config.has_closed_forms:
        rows = setting.rows_of_closed_forms
        moments = state_moments(
            setting.source, target, setting.layer_pairs, rows, setting.budget, means
        )
        rows_read = len(rows.tokens)
    # `state_moments` has added its rows to the means. The remaining rows, up to `MOST_TOKENS`
    # tokens, are read here.
    n_rows_of_means = max(MOST_TOKENS // setting.corpus.fit.context, 1)
    rows_left = tokens[rows_read : max(rows_read, n_rows_of_means)]
    means.read(target, rows_left)
    free_cached_memory(target.device)
    return FitStatistics(moments, means)
