"""What the judges of a court look at: a source's states, its maps to the target, its stitched run.

Everything about a source is computed once, when the first judge asks for it.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.contrib.court.later_tokens import relative_change_by_later_tokens
from thinkalike.contrib.court.source import Source
from thinkalike.contrib.court.target_results import StitchedRun, TargetResults, inner_states
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
    """Everything that measures of similarity need of one source and the target.

    A source is a function from tokens to states whose similarity to the target is known.
    """

    def __init__(self, source: Source, target_results: TargetResults):
        """Keep a source, and what the target gives, which is the same for all sources."""
        self.source = source
        self.target_results = target_results
        self.materials = target_results.materials

    def _source_states(self, rows: Int[Tensor, "rows t"]) -> Float[Tensor, "n d"]:
        """Return the source's states at the inner tokens: all but the first and last of a row."""
        (states,) = inner_states(lambda batch: self.source.residuals(batch, [0]), rows)
        return states

    @cached_property
    def _evaluation_states(self) -> Float[Tensor, "n d"]:
        """The source's states at the inner tokens of the evaluation text."""
        return self._source_states(self.materials.evaluation_rows)

    @cached_property
    def is_compared(self) -> Bool[Tensor, " n"]:
        """Which inner tokens of the evaluation text are compared.

        Inner tokens are all but the first and the last of each row. Those with a massive state in
        the source or in the target are left out: massive states (activations) are so large that
        they would decide every measure.
        """
        # Both have a row for each inner token, and none for other tokens.
        return _is_not_massive(self._evaluation_states, self.target_results.evaluation_states)

    @cached_property
    def states(self) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k e"]]:
        """The states of the source and of the target at the k tokens that are compared.

        These are tokens of the evaluation text, without those at which a state is very large.
        """
        source = self._evaluation_states[self.is_compared]
        target = self.target_results.evaluation_states[self.is_compared]
        return source, target

    @cached_property
    def samples(self) -> list[Int[Tensor, " n"]]:
        """Disjoint random samples of tokens, for measures that compare all pairs of tokens.

        A sample has indices among the tokens that are compared (`is_compared`).

        There are at most `MOST_SAMPLES` samples of `SAMPLE_TOKENS` tokens each. If there are fewer
        tokens than one sample has, one sample holds all of them.
        """
        n_compared = int(self.is_compared.sum())
        sample_size = min(SAMPLE_TOKENS, n_compared)
        generator = torch.Generator().manual_seed(self.materials.seed_for("samples"))
        order = torch.randperm(n_compared, generator=generator)
        # The last sample may be shorter than the others, and is then left out.
        samples = [sample for sample in order.split(SAMPLE_TOKENS) if len(sample) == sample_size]
        return samples[:MOST_SAMPLES]

    @cached_property
    def token_features(self) -> Float[Tensor, "k f"]:
        """The f features, such as length and frequency, of the k tokens that are compared."""
        return self.target_results.token_features[self.is_compared]

    @cached_property
    def later(self) -> float:
        """How much the source's states change when later tokens are replaced.

        It is the squared change, relative to the squared distance of a state from the mean state:
        0 for a causal source, or near 0 if the source has random noise.
        """
        return relative_change_by_later_tokens(self.source, self.materials.fit_rows)

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
        - `beyond_mixing`: residual R², the mean of both directions, minus a multiple of `mixing`
          (`MORE_THAN_MIXING`);
        - `later`: how much the source's states change with later tokens.

        The ends of the interval of `r2` are `r2_low` and `r2_high`, and so on; `mixing` and
        `later` have none.
        """
        target = self.target_results.predictors(self.is_compared)
        plain_source = target.residual_states.plain_predictor(self._evaluation_states)
        residual_source = target.residual_states.predictor(self._evaluation_states)
        # (direction, replicate): R² of the target from the source, and of the source from the
        # target. Replicate 0 is that of all documents, and each further one leaves some out.
        plain = both_ways(plain_source, target.plain)
        residual = both_ways(residual_source, target.residual)
        mixing = target.mixing_r2.mean(1)  # (1, replicate), the mean of both directions
        residual_of_both = residual.mean(0)[None]  # (1, replicate), the mean of both directions
        beyond_mixing = residual_of_both - MORE_THAN_MIXING * mixing
        # Each estimate has one number, with its interval.
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
        """R² of residual states, the mean of both directions, as in `measure=ruler`.

        Residual states are without what the token, its position and linear mixing of the earlier
        tokens predict.
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
        target = self.target_results.fit_states
        # A few tokens with massive activations (very large states) would decide the fit.
        is_fitted = _is_not_massive(source, target)
        n_fitted = int(is_fitted.sum())

        source_layer = 0  # a source has one layer
        target_layer = self.materials.layer
        layer_pair = (source_layer, target_layer)
        moments = HalvedMoments([layer_pair], both=False)  # not of the map back
        # Cross-validation fits on one half of the rows and tests on the other. All rows are given
        # to `halves_of` as if they came from one document. It then takes the first and the second
        # half of the rows, in order, and does not draw halves at random.
        one_document = torch.zeros(n_fitted, dtype=torch.long)
        moments.update(
            {source_layer: source[is_fitted]},
            {target_layer: target[is_fitted]},
            halves_of(one_document),
        )
        stitch = least_squares(moments, layer_pair, ridge=None)  # None: chosen by cross-validation
        return self.target_results.stitched_run(self.source, stitch)


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
