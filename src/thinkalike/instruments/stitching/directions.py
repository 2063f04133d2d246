"""Both directions of a stitching job: what each costs beyond the other, and what maps there and back miss."""

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
from thinkalike.evaluation.moments import rows_of_moments
from thinkalike.instruments.stitching.table import BITS, Direction, losses_of_seeds
from thinkalike.measures.closed_forms import AffineMap, HalvedMoments, LayerPair
from thinkalike.measures.estimates import Estimate, bootstrap_interval, documents_and_seeds_interval
from thinkalike.models.frozen import FrozenModel

log = logging.getLogger(__name__)

UNEXPLAINED = ("unexplained", "unexplained_back", "round_trip_unexplained", "round_trip_unexplained_back")


def asymmetries(onward: Mapping[str, Tensor], back: Mapping[str, Tensor]) -> dict[str, Estimate]:
    """Return the penalty of each φ minus that of the φ back between the same two layers, by the name of a column.

    It is in nats per token, over documents and seeds. Where the tokenizers differ, it is in bits per byte of each
    direction's own text, and its interval joins those of both by MOVER (Zou & Donner 2008, eq. 4), as if they were
    independent:

        low = R - √((R₁ - low₁)² + (high₂ - R₂)²),    high = R + √((high₁ - R₁)² + (R₂ - low₂)²),    R = R₁ - R₂

    Nothing is returned where the directions report on different tokens of one tokenizer, as models do that begin their
    rows differently. The sums are those of `penalties`, of layer pairs in the same order.
    """
    sides = [losses_of_seeds(sums) - sums["target"] for sums in (onward, back)]
    if "target_bytes" in onward:
        counts = [sums["target_bytes"].clamp(min=1).double() for sums in (onward, back)]
        both = (documents_and_seeds_interval(side * BITS, own) for side, own in zip(sides, counts, strict=True))
        (one, low, high), (other, least, most) = both
        value = one - other
        ends = value - (one - low).hypot(most - other), value + (high - one).hypot(other - least)
        return {"asymmetry_bits_per_byte": Estimate(value, *ends)}
    if not torch.equal(onward["tokens"], back["tokens"]):
        return {}
    return {"asymmetry": documents_and_seeds_interval(sides[0] - sides[1], onward["tokens"])}


def add_unexplained(there: Direction, back: Direction) -> None:
    """Add to both details the shares of the variance of the report's states that maps leave.

    `unexplained` is of the target's states and the map, and `round_trip_unexplained` of the source's states and the map
    and then the map back; variance is about the mean of the rows that were fitted on.
    """
    setting, rows = there.forms.setting, there.forms.setting.corpus.report

    def fitted_map(weights: Mapping[str, Tensor], number: int) -> AffineMap:
        parts = (weights[f"{number}.map.{part}"] for part in ("weight", "bias"))
        return AffineMap(*(part.to(setting.target.device).double() for part in parts))

    numbers = range(len(setting.layer_pairs))
    maps = [(fitted_map(there.weights, each), fitted_map(back.weights, each)) for each in numbers]
    at_once = rows_of_moments(*setting.models, rows, setting.budget)
    sums = residual_sums(*setting.models, maps, there.forms.moments, rows, at_once)
    for number, name in enumerate(UNEXPLAINED):
        pairs = zip(sums["left"][:, number], sums["whole"][:, number], strict=True)
        found = zip(*(bootstrap_interval(*each) for each in pairs), strict=True)
        for column, values in interval_columns(name.replace("_back", ""), Estimate(*map(torch.stack, found))).items():
            (back if "_back" in name else there).details[column] = values


def add_asymmetries(onward: Direction, back: Direction) -> None:
    """Add to the details of both directions how much more each costs than the other."""
    found = asymmetries(onward.sums, back.sums)
    if not found:
        log.warning("warning: there is no asymmetry, as the two directions report on different tokens")
    for name, (value, low, high) in found.items():
        onward.details = onward.details.assign(**interval_columns(name, Estimate(value, low, high)))
        back.details = back.details.assign(**interval_columns(name, Estimate(-value, -high, -low)))


@torch.no_grad()
def residual_sums(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    maps: Sequence[tuple[AffineMap, AffineMap]],
    moments: HalvedMoments,
    rows: TokenRows,
    batch: int,
) -> DocumentSums:
    """Run rows through both models, and sum by document the squares that maps and their round trips miss.

    Variance is about the means of the rows that the maps were fitted on, which have these moments. `left` and `whole`
    are of shape (pairs, maps, documents), with the maps in the order of `UNEXPLAINED`.
    """
    sums = DocumentSums(rows.documents)
    layers, depths = ([pair[side] for pair in layer_pairs] for side in (0, 1))
    for part in rows.batches(batch):
        squares = []
        mine, theirs = states_of_both(source, target, part, layers, depths)
        for pair, both, x, y in zip(layer_pairs, maps, part.align(mine), theirs, strict=True):
            statistics = moments.of(pair)
            x = x.flatten(0, 1).to(target.device).double() - statistics.mean_x
            squares.append(_squares(both, x, y.flatten(0, 1).double() - statistics.mean_y).cpu())
        left, whole = torch.stack(squares, 1)
        sums.add(part.documents.flatten(), {"left": left, "whole": whole})
    return sums


def _squares(
    maps: tuple[AffineMap, AffineMap], x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]
) -> Float[Tensor, "2 maps n"]:
    """Return the squared residuals of states about the fitted means, and their squared lengths."""
    phi, psi = (each.weight.T for each in maps)  # biases only lead from one mean to the other
    there, back = x @ phi, y @ psi
    left = [each.square().sum(1) for each in (y - there, x - back, x - there @ psi, y - back @ phi)]
    own = [side.square().sum(1) for side in (x, y)]
    return torch.stack([torch.stack(left), torch.stack([own[1], own[0], own[0], own[1]])])
