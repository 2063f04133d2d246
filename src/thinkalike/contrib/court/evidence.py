"""What the judges of a court look at: a source's states, its maps to the target, its stitched run.

Everything about a source is computed once, when the first judge asks for it.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.contrib.court.bench import Bench, StitchedRun, inner_states
from thinkalike.contrib.court.later_tokens import later_share
from thinkalike.contrib.court.source import Source
from thinkalike.evaluation.columns import interval_columns
from thinkalike.instruments.ruler.calibration_points import difference_interval
from thinkalike.measures.closed_forms import least_squares
from thinkalike.measures.halved_moments import HalvedMoments, halves_of
from thinkalike.measures.massive_rows import massive
from thinkalike.measures.ridge import both_ways, with_interval

# Measures of all pairs of tokens are averaged over a few samples of tokens.
SAMPLE_TOKENS = 1024
MOST_SAMPLES = 4

# By how much more than local mixing source and target must share: a bag of another decay than
# those of the controls shares 1.02 times as much as they do.
MORE_THAN_MIXING = 1.25


class Evidence:
    """What is known of one source at a bench.

    Args:
        source: The source.
        bench: The target's side of each comparison.
    """

    def __init__(self, source: Source, bench: Bench):
        self.source = source
        self.bench = bench
        self.materials = bench.materials

    def _source_states(self, rows: Int[Tensor, "rows t"]) -> Float[Tensor, "n d"]:
        """Return the source's states at the inner tokens of rows."""
        (states,) = inner_states(lambda batch: self.source.residuals(batch, [0]), rows)
        return states

    @cached_property
    def _report_states(self) -> Float[Tensor, "n d"]:
        """The source's states at the inner tokens of the evaluation text."""
        return self._source_states(self.materials.evaluation_rows)

    @cached_property
    def is_compared(self) -> Bool[Tensor, " n"]:
        """Which inner tokens of the evaluation text are compared: all but massive activations."""
        return _is_not_massive(self._report_states, self.bench.report_states)

    @cached_property
    def states(self) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k e"]]:
        """The states of the source and of the target at the tokens that are compared."""
        source = self._report_states[self.is_compared]
        target = self.bench.report_states[self.is_compared]
        return source, target

    @cached_property
    def samples(self) -> list[Int[Tensor, " n"]]:
        """Disjoint random samples of token indices, for measures that compare all pairs of tokens.

        There are at most `MOST_SAMPLES` samples of `SAMPLE_TOKENS` tokens each. If there are fewer
        tokens than one sample has, one sample holds all of them.
        """
        n_compared = int(self.is_compared.sum())
        sample_size = min(SAMPLE_TOKENS, n_compared)
        generator = torch.Generator().manual_seed(self.materials.seed_for("samples"))
        order = torch.randperm(n_compared, generator=generator)
        # The last part of the order may be shorter, and is then left out.
        samples = [sample for sample in order.split(SAMPLE_TOKENS) if len(sample) == sample_size]
        return samples[:MOST_SAMPLES]

    @cached_property
    def token_features(self) -> Float[Tensor, "k f"]:
        """The features of the tokens that are compared, which an MLEM profile is about."""
        return self.bench.token_features[self.is_compared]

    @cached_property
    def later(self) -> float:
        """How much the source's states move with later tokens, see `later_share`."""
        return later_share(self.source, self.materials.fit_rows)

    @cached_property
    @torch.no_grad()
    def columns(self) -> dict[str, float]:
        """The numbers that a verdict is based on, with 95 % intervals over evaluation documents.

        - `r2`: R² of the target's states from the source's;
        - `r2_back`: R² of the source's states from the target's;
        - `residual_r2`, `residual_r2_back`: the same for residual states, without what the token,
          its position and linear mixing of the earlier tokens predict;
        - `mixing`: residual R² between the target and a network that only mixes earlier tokens,
          the mean of both directions;
        - `beyond_mixing`: residual R², the mean of both directions, minus `MORE_THAN_MIXING` times
          `mixing`;
        - `later`: how much the source's states change with later tokens.
        """
        target = self.bench.target_side(self.is_compared)
        # (direction, replicate): R² of the target from the source, and of the source from the
        # target. Replicate 0 is that of all documents.
        plain = both_ways(target.residual.plain_predictor(self._report_states), target.plain)
        residual = both_ways(target.residual.predictor(self._report_states), target.beyond)
        mixing = target.mixing.mean(1)  # (1, replicate), the mean of both directions
        beyond_mixing = residual.mean(0)[None] - MORE_THAN_MIXING * mixing
        estimates = {
            "r2": with_interval(plain[:1]),
            "r2_back": with_interval(plain[1:]),
            "residual_r2": with_interval(residual[:1]),
            "residual_r2_back": with_interval(residual[1:]),
            "beyond_mixing": difference_interval(beyond_mixing),
        }
        columns = {"later": self.later, "mixing": float(mixing[0, 0])}
        for name, estimate in estimates.items():
            for column, number in interval_columns(name, estimate).items():
                columns[column] = float(number[0])
        return columns

    @property
    def r2(self) -> float:
        """R² of the states as they are, the mean of both directions."""
        return (self.columns["r2"] + self.columns["r2_back"]) / 2

    @property
    def residual_r2(self) -> float:
        """R² beyond token, position and linear mixing, the mean of both directions.

        It is that of `measure=ruler`.
        """
        return (self.columns["residual_r2"] + self.columns["residual_r2_back"]) / 2

    @cached_property
    @torch.no_grad()
    def stitched_run(self) -> StitchedRun:
        """How the target's loss and states change if its later blocks read the source's states.

        The source's states are mapped to the target's by a stitch, which is fitted by ridge
        regression. The penalty of the ridge is chosen by cross-validation.
        """
        source = self._source_states(self.materials.fit_rows)
        target = self.bench.fit_states
        is_fitted = _is_not_massive(source, target)
        n_fitted = int(is_fitted.sum())

        layer_pair = (0, self.materials.layer)
        moments = HalvedMoments([layer_pair], both=False)
        # With one document, the halves for cross-validation are the first and second half of rows.
        one_document = torch.zeros(n_fitted, dtype=torch.long)
        moments.update(
            {layer_pair[0]: source[is_fitted]},
            {layer_pair[1]: target[is_fitted]},
            halves_of(one_document),
        )
        stitch = least_squares(moments, layer_pair, ridge=None)
        return self.bench.stitched_run(self.source, stitch)


def _is_not_massive(
    source: Float[Tensor, "n d"], target: Float[Tensor, "n e"]
) -> Bool[Tensor, " n"]:
    """Return which tokens have no massive activations in source or target.

    The states of a few tokens can be so large that they would decide every measure.
    """
    is_massive = massive([target, source])
    if is_massive is None:  # no token has any
        return torch.ones(len(target), dtype=torch.bool)
    return ~is_massive
