"""What maps in both directions leave unexplained of held-out states, by document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.data import TokenRows
from thinkalike.errors import ModelError
from thinkalike.evaluation.intervals import ends_of
from thinkalike.evaluation.stitches import LayerPair, states_of_both
from thinkalike.measures import BothDirections, Estimate, Moments, Unexplained, bootstrap_interval, sum_by_document
from thinkalike.models import FrozenModel


class ResidualSums(NamedTuple):
    """Sums of squares over the tokens of each document, in float64; see `residual_sums`."""

    left: Float[Tensor, "pairs maps documents"]  # in the order of `Unexplained`
    whole: Float[Tensor, "pairs maps documents"]

    def columns(self) -> dict[str, list[float]]:
        """Return shares of variance that are left unexplained, with the ends of 95 % intervals over documents."""
        columns: dict[str, list[float]] = {}
        for number, name in enumerate(Unexplained._fields):
            pairs = zip(self.left[:, number], self.whole[:, number], strict=True)
            found = zip(*(bootstrap_interval(*sums) for sums in pairs), strict=True)
            columns |= ends_of(UNEXPLAINED[name], Estimate(*map(torch.stack, found)))
        return columns


UNEXPLAINED = {  # columns of a table, by map
    "phi": "unexplained",
    "psi": "unexplained_back",
    "psi_phi": "round_trip_unexplained",
    "phi_psi": "round_trip_unexplained_back",
}


def unexplained_variance(
    maps: BothDirections, moments: Moments, pair: LayerPair, names: tuple[str, str]
) -> Unexplained:
    """Return what the maps of a layer pair leave unexplained of the states that moments were gathered of.

    Args:
        names: of both models, for messages.

    Raises:
        ModelError: the states of a layer do not vary.
    """
    try:
        return maps.unexplained(moments.of(pair))
    except ValueError as error:
        raise ModelError(f"layer {pair[0]} of {names[0]} and layer {pair[1]} of {names[1]}: {error}") from None


@torch.no_grad()
def residual_sums(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    maps: Sequence[BothDirections],
    moments: Moments,
    rows: TokenRows,
    batch: int,
) -> ResidualSums:
    """Run rows through both models, and sum by document what maps and their round trips miss of the states.

    The variance of a side is about the mean of the rows that the maps were fitted on.

    Args:
        maps: of each layer pair.
        moments: of the rows that the maps were fitted on.
        batch: rows at a time.
    """
    count, layout = int(rows.documents.max()) + 1, rows.layout
    layers, depths = ([pair[side] for pair in layer_pairs] for side in (0, 1))
    sums = torch.zeros(2, len(layer_pairs), len(Unexplained._fields), count, dtype=torch.float64)
    for part, owners in zip(rows.tokens.split(batch), rows.documents.split(batch), strict=True):
        part, owner = part.long(), owners.flatten()
        mine, theirs = states_of_both(source, target, part, layers, depths, layout)
        for place, (x, y) in enumerate(zip(layout.gathered(mine, part), theirs, strict=True)):
            statistics = moments.of(layer_pairs[place])
            x = x.flatten(0, 1).to(target.device).double() - statistics.mean_x
            y = y.flatten(0, 1).double() - statistics.mean_y
            for side, squares in enumerate(_squares(maps[place], x, y)):
                sums[side, place] += sum_by_document(squares.cpu()[:, owner >= 0], owner[owner >= 0], count)
    return ResidualSums(*sums)


def _squares(
    maps: BothDirections, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]
) -> tuple[Float[Tensor, "maps n"], Float[Tensor, "maps n"]]:
    """Return the squared residuals of states about the fitted means, and their squared lengths."""
    phi, psi = maps.phi.weight.T, maps.psi.weight.T  # biases only lead from one mean to the other
    there, back = x @ phi, y @ psi
    left = torch.stack([each.square().sum(1) for each in (y - there, x - back, x - there @ psi, y - back @ phi)])
    own = [side.square().sum(1) for side in (x, y)]
    return left, torch.stack([own[1], own[0], own[0], own[1]])
