"""Rows about their typical point, in units of their typical norm: for Gram matrices in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.powers_of_two import power_of_two_unit
from thinkalike.measures.row_groups import RowGroups, all_alike, common_dtype

# What is wrong with the rows of a layer; 0 is nothing.
NOT_FINITE = 1
ALIKE = 2


class CentredRows(NamedTuple):
    """The rows of a layer, shifted and scaled.

    Attributes:
        name: What an error calls the layer.
        rows: (x - shift) / scale for each row x.
        scale: The root of the mean squared distance of rows from their mean.
        leverage: The share of the row farthest from the mean in the squared distances of all rows.
        flaw: 0, or why the layer cannot be compared: `NOT_FINITE` or `ALIKE`.
    """

    name: str
    rows: Float[Tensor, "n d"]
    scale: Float[Tensor, ""]
    leverage: Float[Tensor, ""]
    flaw: Int[Tensor, ""]


def leverage(features: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Return the share that the row farthest from the mean has in the variance.

    It is maxᵢ kᵢ / Σᵢ kᵢ with kᵢ = ‖xᵢ - μ‖², in [1/n, 1]. Near 1, a single row, such as a token
    with massive activations, decides the value of CKA.

    Raises:
        ValueError: A value is not finite, or all rows are the same.

    >>> leverage([[1.0, 0.0], [-1.0, 0.0]]).item()
    0.5
    """
    return centred(features).leverage


def centred(features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Return the rows of a layer less their typical point, divided by their typical norm.

    They are in float32 or a wider dtype.

    Raises:
        ValueError: There are no rows or no columns, a value is not finite, or all rows are the
            same up to rounding. The error calls the layer `name`.
    """
    if not features.numel():
        raise ValueError(
            f"{name} has shape {tuple(features.shape)}: give one row and one column or more"
        )
    layer = centre(features.to(common_dtype([features])), name)
    refuse_flaws([layer])
    return layer


def centre(features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Return the rows of one layer shifted and scaled, as `centre_all` does for several."""
    return centre_all(features[None], [name])[0]


def centre_all(
    features: Float[Tensor, "l n d"], names: Sequence[str], in_place: bool = False
) -> list[CentredRows]:
    """Return the rows of each layer less their typical point, divided by their typical norm.

    HSIC does not depend on the shift. The typical point is chosen such that its subtraction loses
    no digits, see `subtract_typical_point`. Rows may be of any size, as they are divided by a
    power of two first. Shift and scale are constants for gradients.

    Beside its rows a layer has its scale, and its leverage: the largest share that one row has in
    the sum of squared distances from the mean. It also has its flaw, such as a NaN or equal rows,
    which `refuse_flaws` raises later, so that a GPU need not be waited for at every layer.

    Args:
        features: The layers.
        names: What errors call them.
        in_place: Whether the features may be changed in place: new memory costs several times as
            much as a pass over it.
    """
    with torch.no_grad():
        unit_of_layer = power_of_two_unit(features, over=(1, 2))  # (l,)
    unit = unit_of_layer[:, None, None]
    if in_place:
        rows = features.div_(unit)
    else:
        rows = features / unit
    with torch.no_grad():  # constants for a gradient
        squared_distances, mean = subtract_typical_point(rows)  # changes `rows` in place
        mean_square = squared_distances.mean(1)
        flaws = flaw_of(mean_square, mean.square().sum(1), features.dtype)
        scale = mean_square.sqrt()
    scaled_rows = rows.div_(scale[:, None, None])
    scale_of_features = scale.double() * unit_of_layer  # that of the rows before the division
    leverages = squared_distances.amax(1) / squared_distances.sum(1)
    layers = []
    for name, rows_of_layer, scale_of_layer, leverage_of_layer, flaw in zip(
        names, scaled_rows, scale_of_features, leverages, flaws, strict=True
    ):
        layers.append(CentredRows(name, rows_of_layer, scale_of_layer, leverage_of_layer, flaw))
    return layers


@torch.no_grad()
def subtract_typical_point(
    rows: Float[Tensor, "b n d"],
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b d"]]:
    """Subtract from the n rows of each block a point amid most of them, in place.

    The mean will not do: a massive row moves it, so that subtracting it leaves the same large
    offset in all other rows, whose digits are then lost. So the row of median norm is subtracted
    first. It is of the size of most rows, however large the others are. The point is then a mean
    in which a row has the weight min(1, m / kᵢ), with kᵢ its squared distance from that row and m
    the median of these.

    Returns:
        The squared distance of each row from the mean of its block, and the means.
    """
    n = rows.shape[1]
    middle = (n - 1) // 2
    norms = torch.linalg.vector_norm(rows, dim=2)
    # Sorted stably, as CUDA has no deterministic median that says where it is.
    middle_row = norms.argsort(stable=True, dim=1)[:, middle]
    origin = rows.gather(1, middle_row[:, None, None].expand(-1, 1, rows.shape[2]))
    rows.sub_(origin)

    squares = torch.linalg.vector_norm(rows, dim=2).square()  # kᵢ
    median = squares.sort(1).values[:, middle, None]  # m
    weights = torch.where(squares <= median, 1.0, median / squares)
    weights /= weights.sum(1, keepdim=True)
    equal_weights = torch.full_like(weights, 1 / n)
    # The weighted mean and the plain mean μ, (b, 1, d) each, in one pass over the rows.
    both_means = torch.stack([weights, equal_weights], 1) @ rows
    typical_point, mean = both_means.split(1, dim=1)
    # ‖x - μ‖² = ‖x‖² - 2 x·μ + ‖μ‖². As the origin is a row, there is little to cancel.
    distances = squares - 2 * (rows @ mean.mT).squeeze(2) + mean.square().sum(2)
    rows.sub_(typical_point)
    return distances.clamp(min=0), (origin + mean).squeeze(1)


@torch.no_grad()
def centre_groups(
    groups: RowGroups, features: Float[Tensor, "n d"], name: str = "features"
) -> CentredRows:
    """Return rows less the typical point of their group, divided by the typical norm of all rows.

    The typical point is a mean in which far rows count little, and the typical norm the root mean
    square distance of rows from the mean of their group. The rows are in the order of the groups,
    and rows of no group are left out. It has no gradient.

    Args:
        groups: The groups of rows.
        features: The rows of one layer.
        name: What errors call the layer.
    """
    rows = features[groups.order]  # a copy
    unit = power_of_two_unit(rows)  # dividing by it keeps squares within range, without rounding
    rows /= unit

    # Blocks are views of `rows` and `distances`, which are filled in place: a block (g, s, d) has
    # all groups of one size s.
    # Σ ‖mean of the row's group‖² over all rows, beside which small distances are only rounding
    sum_of_squared_means = rows.new_zeros(())
    distances = rows.new_empty(len(rows))  # the squared distance of each row from its group's mean
    for block, block_distances in zip(
        groups.split_by_size(rows), groups.split_by_size(distances), strict=True
    ):
        distances_of_block, means = subtract_typical_point(block)
        block_distances.copy_(distances_of_block)
        sum_of_squared_means = sum_of_squared_means + block.shape[1] * means.square().sum()

    squared_distance = distances.mean()
    flaw = flaw_of(squared_distance, sum_of_squared_means / len(rows), features.dtype)
    scale = squared_distance.sqrt()
    return CentredRows(
        name=name,
        rows=rows.div_(scale),
        scale=scale.double() * unit,
        leverage=distances.max() / distances.sum(),
        flaw=flaw,
    )


def flaw_of(
    squared_distance: Float[Tensor, "*l"], squared_mean: Float[Tensor, "*l"], dtype: torch.dtype
) -> Int[Tensor, "*l"]:
    """Return what is wrong with the rows of each layer: 0, `NOT_FINITE` or `ALIKE`.

    Args:
        squared_distance: The mean squared distance of rows from their mean.
        squared_mean: The squared norm of that mean. Distances that are tiny beside it are only
            rounding.
        dtype: The dtype of the rows.
    """
    are_alike = all_alike(squared_distance, squared_mean, dtype)
    flaw_of_finite_rows = torch.where(are_alike, ALIKE, 0)
    return torch.where(squared_distance.isfinite(), flaw_of_finite_rows, NOT_FINITE)


def refuse_flaws(layers: Sequence[CentredRows], alike: str = "all rows are the same") -> None:
    """Raise a ValueError for the first layer with a value that is not finite, or with equal rows.

    Args:
        layers: The layers, whose flaws were recorded when they were centred. They are read
            together, as each read makes a GPU wait.
        alike: How the error says that rows are the same.
    """
    reasons = {
        NOT_FINITE: "a value is not finite, or too large",
        ALIKE: f"{alike}, or differ by too little",
    }
    flaws = torch.stack([layer.flaw for layer in layers]).tolist()
    for layer, flaw in zip(layers, flaws, strict=True):
        if flaw:
            raise ValueError(f"{layer.name}: {reasons[flaw]} for {layer.rows.dtype}")
