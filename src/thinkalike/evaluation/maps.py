"""Maps between two models in closed form: their statistics from text, and what they leave unexplained of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.corpus import Layout, TokenRows
from thinkalike.evaluation.language import DocumentSums, ends_of, halved, states_of_both
from thinkalike.measures.closed_forms import AffineMap, LayerPair, Moments
from thinkalike.measures.estimates import Estimate, bootstrap_interval
from thinkalike.memory import Budget
from thinkalike.models.frozen import FrozenModel, StateSource
from thinkalike.progress import counted


@torch.no_grad()
def state_moments(
    source: StateSource,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: Int[Tensor, "rows width"],
    batch: int,
    layout: Layout | None = None,
) -> Moments:
    """Return the sufficient statistics of closed-form maps of all layer pairs, from one pass over the rows.

    Without a layout, rows hold tokens that both models read.
    """
    moments, layout = Moments(layer_pairs), layout or Layout(rows.shape[1])
    layers, depths = (list(dict.fromkeys(side)) for side in zip(*layer_pairs, strict=True))
    for part in counted(rows.split(batch), "batch of closed forms"):
        part = part.long()
        mine, theirs = states_of_both(source, target, part, layers, depths, layout)
        mine = [state.flatten(0, 1).to(target.device) for state in layout.gathered(mine, part)]
        theirs = [state.flatten(0, 1) for state in theirs]
        moments.update(dict(zip(layers, mine, strict=True)), dict(zip(depths, theirs, strict=True)))
    return moments


def rows_of_moments(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: Int[Tensor, "rows width"],
    most: int,
    budget: Budget,
    layout: Layout | None = None,
) -> int:
    """Return how many rows, at most `most`, fit into memory: the layers' states, and two copies in float64."""
    sides = zip((source, target), zip(*layer_pairs, strict=True), strict=True)
    numbers = sum(len(set(side)) * model.d_model * (model.dtype.itemsize + 16) for model, side in sides)
    tokens = max(layout.target, layout.source) if layout else rows.shape[1]
    return halved(most, lambda count: count * tokens * numbers <= budget.room)


UNEXPLAINED = ("unexplained", "unexplained_back", "round_trip_unexplained", "round_trip_unexplained_back")


class ResidualSums(NamedTuple):
    """Sums of squares over the tokens of each document, in float64, of each map in the order of `Unexplained`."""

    left: Float[Tensor, "pairs maps documents"]
    whole: Float[Tensor, "pairs maps documents"]

    def columns(self) -> dict[str, list[float]]:
        """Return the unexplained shares of variance with their 95 % intervals over documents, in columns."""
        columns: dict[str, list[float]] = {}
        for number, name in enumerate(UNEXPLAINED):
            pairs = zip(self.left[:, number], self.whole[:, number], strict=True)
            found = zip(*(bootstrap_interval(*sums) for sums in pairs), strict=True)
            columns |= ends_of(name, Estimate(*map(torch.stack, found)))
        return columns


@torch.no_grad()
def residual_sums(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    maps: Sequence[tuple[AffineMap, AffineMap]],
    moments: Moments,
    rows: TokenRows,
    batch: int,
) -> ResidualSums:
    """Run rows through both models, and sum by document the squares that maps and their round trips miss.

    Variance is about the means of the rows that the maps were fitted on, which have these moments.
    """
    sums, layout = DocumentSums(rows.documents), rows.layout
    layers, depths = ([pair[side] for pair in layer_pairs] for side in (0, 1))
    for part, owners in zip(rows.tokens.split(batch), rows.documents.split(batch), strict=True):
        part, squares = part.long(), []
        mine, theirs = states_of_both(source, target, part, layers, depths, layout)
        for pair, both, x, y in zip(layer_pairs, maps, layout.gathered(mine, part), theirs, strict=True):
            statistics = moments.of(pair)
            x = x.flatten(0, 1).to(target.device).double() - statistics.mean_x
            squares.append(_squares(both, x, y.flatten(0, 1).double() - statistics.mean_y).cpu())
        left, whole = torch.stack(squares, 1)
        sums.add(owners.flatten(), {"left": left, "whole": whole})
    return ResidualSums(**sums)


def _squares(
    maps: tuple[AffineMap, AffineMap], x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]
) -> Float[Tensor, "2 maps n"]:
    """Return the squared residuals of states about the fitted means, and their squared lengths."""
    phi, psi = (each.weight.T for each in maps)  # biases only lead from one mean to the other
    there, back = x @ phi, y @ psi
    left = [each.square().sum(1) for each in (y - there, x - back, x - there @ psi, y - back @ phi)]
    own = [side.square().sum(1) for side in (x, y)]
    return torch.stack([torch.stack(left), torch.stack([own[1], own[0], own[0], own[1]])])
