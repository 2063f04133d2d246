"""Both directions of a stitching job: what each costs beyond the other, and what maps leave."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.columns import interval_columns
from thinkalike.evaluation.document_sums import DocumentSums
from thinkalike.evaluation.forward import states_of_both
from thinkalike.evaluation.moments import batch_rows_of_moments
from thinkalike.instruments.stitching.direction import Direction
from thinkalike.instruments.stitching.table import (
    BITS_PER_NAT,
    bytes_as_counts,
    loss_sums_of_seeds,
)
from thinkalike.measures.bootstrap import bootstrap_interval, documents_and_seeds_interval
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.halved_moments import HalvedMoments
from thinkalike.measures.moments import LayerPair
from thinkalike.models.frozen import FrozenModel

log = logging.getLogger(__name__)

MAP = 0
MAP_BACK = 1
ROUND_TRIP = 2
ROUND_TRIP_BACK = 3
"""The indices of the maps of a layer pair along the axis of maps of `residual_sums`."""


def asymmetries(onward: Mapping[str, Tensor], back: Mapping[str, Tensor]) -> dict[str, Estimate]:
    """Return penalty(source→target) - penalty(target→source) of each layer pair, by column name.

    The penalty of a stitch is the loss of the stitched model less that of the target alone. The
    difference is in nats per token, with an interval over documents and seeds, in the column
    `asymmetry`: it is taken document by document. If the tokenizers differ, it is in bits per byte
    of the text that each direction predicts, in `asymmetry_bits_per_byte`. Each direction then has
    cut the text into rows and documents of its own, so their penalties are compared as independent
    ones, which widens the interval. The dictionary is empty if the tokenizers are the
    same but documents have other numbers of tokens in the two directions, because the models begin
    their rows of text differently.

    Args:
        onward, back: Sums over each document, by name, of either direction: the losses of the
            trained maps φ (`stitch`, and `seed_...` for further seeds) and of the target alone
            (`target`), the number of `tokens`, and, if the tokenizers differ, of `target_bytes`.
            Layer pairs are in the same order in both.
    """
    penalty = loss_sums_of_seeds(onward) - onward["target"]  # (pairs, seeds, documents)
    penalty_back = loss_sums_of_seeds(back) - back["target"]
    if "target_bytes" in onward:  # the tokenizers differ
        bits = documents_and_seeds_interval(
            penalty * BITS_PER_NAT, bytes_as_counts(onward["target_bytes"])
        )
        bits_back = documents_and_seeds_interval(
            penalty_back * BITS_PER_NAT, bytes_as_counts(back["target_bytes"])
        )
        return {"asymmetry_bits_per_byte": _independent_difference(bits, bits_back)}
    if not torch.equal(onward["tokens"], back["tokens"]):
        return {}
    asymmetry = documents_and_seeds_interval(penalty - penalty_back, onward["tokens"])
    return {"asymmetry": asymmetry}


def _independent_difference(first: Estimate, second: Estimate) -> Estimate:
    """Return the difference R = R₁ - R₂ of two independent estimates, with its interval.

    The intervals of both are combined by MOVER (Zou & Donner 2008, eq. 4):

        low = R - √((R₁ - low₁)² + (high₂ - R₂)²),    high = R + √((high₁ - R₁)² + (R₂ - low₂)²)
    """
    value = first.value - second.value
    below = (first.value - first.low).hypot(second.high - second.value)
    above = (first.high - first.value).hypot(second.value - second.low)
    return Estimate(value, value - below, value + above)


def add_asymmetries(onward: Direction, back: Direction) -> None:
    """Add a column to the tables of both directions: how much more each costs than the reverse.

    If the directions were evaluated on different tokens, a warning is logged instead.

    Args:
        onward, back: The stitches from source to target and back, with their losses. Their tables
            `details` are replaced.
    """
    columns = asymmetries(onward.sums, back.sums)
    if not columns:
        log.warning(
            "warning: there is no asymmetry, as the two directions report on different tokens"
        )
    for name, estimate in columns.items():
        # With the sign changed, the high end of the interval becomes the low one.
        reversed_estimate = Estimate(-estimate.value, -estimate.high, -estimate.low)
        onward.details = onward.details.assign(**interval_columns(name, estimate))
        back.details = back.details.assign(**interval_columns(name, reversed_estimate))


def add_unexplained(onward: Direction, back: Direction) -> None:
    """Add columns to the details of both directions: the unexplained variance of states.

    `unexplained` is the share of the variance of the target's states that the map from the source
    does not explain. `round_trip_unexplained` is the share of the variance of the source's states
    that is lost when they are mapped to the target and back. Both are computed on the evaluation
    text; variance is about the mean of the fitting text.
    """
    setting = onward.closed_forms.setting
    rows = setting.corpus.report  # the evaluation text
    device = setting.target.device
    maps = []
    for pair_index in range(len(setting.layer_pairs)):
        phi = _affine_map(onward.weights, pair_index, device)
        phi_back = _affine_map(back.weights, pair_index, device)
        maps.append((phi, phi_back))
    batch_rows = batch_rows_of_moments(
        setting.source, setting.target, setting.layer_pairs, rows, setting.budget
    )
    sums = residual_sums(
        setting.source,
        setting.target,
        setting.layer_pairs,
        maps,
        onward.closed_forms.moments,
        rows,
        batch_rows,
    )

    columns = [
        (onward, "unexplained", MAP),
        (back, "unexplained", MAP_BACK),
        (onward, "round_trip_unexplained", ROUND_TRIP),
        (back, "round_trip_unexplained", ROUND_TRIP_BACK),
    ]
    for direction, name, map_index in columns:
        unexplained = sums["left"][:, map_index]  # squared residuals, (pairs, documents)
        total = sums["whole"][:, map_index]  # squared states, (pairs, documents)
        shares = _unexplained_shares(unexplained, total)
        direction.details = direction.details.assign(**interval_columns(name, shares))


def _affine_map(weights: Mapping[str, Tensor], pair_index: int, device: torch.device) -> AffineMap:
    """Return the affine map of a layer pair, in float64.

    Args:
        weights: The weights of all stitches of a direction, by name.
        pair_index: The index of the layer pair.
        device: The device of the returned map.
    """
    weight = weights[f"{pair_index}.map.weight"]
    bias = weights[f"{pair_index}.map.bias"]
    return AffineMap(weight.to(device).double(), bias.to(device).double())


def _unexplained_shares(
    unexplained: Float[Tensor, "pairs documents"], total: Float[Tensor, "pairs documents"]
) -> Estimate:
    """Return unexplained / total for each layer pair, with intervals over documents.

    Args:
        unexplained, total: Sums of squares over each document's tokens.
    """
    estimates = []
    for unexplained_of_pair, total_of_pair in zip(unexplained, total, strict=True):
        estimates.append(bootstrap_interval(unexplained_of_pair, total_of_pair))
    return Estimate(
        torch.stack([estimate.value for estimate in estimates]),
        torch.stack([estimate.low for estimate in estimates]),
        torch.stack([estimate.high for estimate in estimates]),
    )


@torch.no_grad()
def residual_sums(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    maps: Sequence[tuple[AffineMap, AffineMap]],
    moments: HalvedMoments,
    rows: TokenRows,
    batch_rows: int,
) -> DocumentSums:
    """Run rows of text through both models, and sum squared residuals of maps over documents.

    Args:
        source, target: The models.
        layer_pairs: Their layer pairs.
        maps: For each layer pair, the map and the map back.
        moments: The moments of the rows that the maps were fitted on, whose means are subtracted
            from the states.
        rows: The rows of text.
        batch_rows: How many rows are read together; this changes no value.

    Returns:
        `left`, the squared residuals, and `whole`, the squared states that are predicted, both
        (pairs, 4 maps, documents). The maps are the one from source to target, the one back, the
        round trip of the source's states through both, and the round trip of the target's states.
    """
    sums = DocumentSums(rows.documents)
    source_layers = [layer for layer, _ in layer_pairs]
    target_layers = [layer for _, layer in layer_pairs]
    for batch in rows.batches(batch_rows):
        source_states, target_states = states_of_both(
            source, target, batch, source_layers, target_layers
        )
        states_of_pairs = zip(
            layer_pairs, maps, batch.align(source_states), target_states, strict=True
        )
        residual_squares = []
        state_squares = []
        for pair, maps_of_pair, source_state, target_state in states_of_pairs:
            statistics = moments.of(pair)
            x = source_state.flatten(0, 1).to(target.device).double() - statistics.mean_x
            y = target_state.flatten(0, 1).double() - statistics.mean_y
            residuals, states = _residual_and_state_squares(maps_of_pair, x, y)
            residual_squares.append(residuals.cpu())
            state_squares.append(states.cpu())
        totals = {"left": torch.stack(residual_squares), "whole": torch.stack(state_squares)}
        sums.add(batch.documents.flatten(), totals)
    return sums


def _residual_and_state_squares(
    maps: tuple[AffineMap, AffineMap], x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]
) -> tuple[Float[Tensor, "maps n"], Float[Tensor, "maps n"]]:
    """Return the squared norms of residuals of four maps, and of the states that they predict.

    Along the axis of maps are: the map from source to target, the map back, the round trip of the
    source's states, and the round trip of the target's states. Biases are not needed: they only
    map one mean to the other, and means are subtracted.

    Args:
        maps: The map and the map back.
        x, y: The states of the source and of the target, less the means of the fitting text.
    """
    phi, phi_back = maps
    mapped = x @ phi.weight.T
    mapped_back = y @ phi_back.weight.T
    x_squares = _row_squares(x)
    y_squares = _row_squares(y)
    residual_squares = torch.stack(
        [
            _row_squares(y - mapped),
            _row_squares(x - mapped_back),
            _row_squares(x - mapped @ phi_back.weight.T),
            _row_squares(y - mapped_back @ phi.weight.T),
        ]
    )
    state_squares = torch.stack([y_squares, x_squares, x_squares, y_squares])
    return residual_squares, state_squares


def _row_squares(states: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Return the squared norm of each row."""
    return states.square().sum(1)
