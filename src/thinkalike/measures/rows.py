"""Rows of states: chosen by a mask, and centred for Gram matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import check_choice
from thinkalike.measures.row_groups import RowGroups, all_alike, common_dtype

FLATTEN = ("token", "sample", "mean")  # what a row is, see `rows_of`


def rows_of(
    states: Shaped[Tensor, "*b n d"],
    flatten: str,
    mask: Shaped[Tensor, " ..."] | None = None,
    places: Int[Tensor, " kept"] | None = None,
) -> Shaped[Tensor, "m e"]:
    """Return the states of a batch of sequences as rows; states that are rows already, (n, d), stay so.

    Args:
        states: (b, t, d), or with more axes than t.
        flatten: "token": every token; "sample": a sequence laid out flat, (b, t d); "mean": the mean of its tokens.
        mask: The tokens that count, of the states' shape without d; "sample" cannot do with several lengths.
        places: `places_of` the mask, for several layers of a batch.
    """
    check_choice("flatten", flatten, FLATTEN)
    if mask is not None:
        if mask.shape != states.shape[:-1]:
            raise ValueError(f"a mask of shape {tuple(mask.shape)} does not fit states of shape {tuple(states.shape)}")
        places = places_of(mask) if places is None else places
    if flatten == "token" or states.ndim == 2:
        rows = states.flatten(0, -2)
        try:
            return rows if places is None else rows.index_select(0, places)
        except (IndexError, RuntimeError) as error:
            raise ValueError(f"places holds numbers that are not below {len(rows)}, the number of tokens") from error
    if flatten == "sample":
        if mask is not None and places is not None and len(places) < mask.numel():
            raise ValueError("flatten=sample takes whole sequences: use flatten=mean where a mask drops tokens")
        return states.flatten(1)
    tokens = states.flatten(1, -2)
    if mask is None:
        return tokens.mean(1)
    kept = mask.flatten(1)
    return tokens.masked_fill(~kept[..., None], 0).sum(1) / kept.sum(1, keepdim=True)


def places_of(mask: Shaped[Tensor, " ..."]) -> Int[Tensor, " kept"]:
    """Return the numbers of the tokens that count; a boolean index would let the host wait for a GPU at every layer."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask holds {mask.dtype}, which would choose rows by number: give True and False, as mask > 0"
        )
    return mask.flatten().nonzero().squeeze(1)


def labels_of_rows(
    labels: Int[Tensor, " ..."], mask: Shaped[Tensor, " ..."] | None, states: Shaped[Tensor, " ..."], name: str
) -> Int[Tensor, " n"]:
    """Return the label, such as its token, of each row that a mask leaves of a batch of states."""
    if labels.shape != states.shape[:-1]:
        raise ValueError(f"{name} of shape {tuple(labels.shape)} do not fit states of shape {tuple(states.shape)}")
    return rows_of(labels.to(states.device)[..., None], "token", mask).squeeze(1)


# ---- rows about their typical point, in units of their typical norm, for Gram matrices in float32

NOT_FINITE, ALIKE = 1, 2


class CentredRows(NamedTuple):
    name: str  # what an error calls them
    rows: Float[Tensor, "n d"]  # (x - shift) / scale
    scale: Float[Tensor, ""]  # root of the mean squared distance from the mean
    leverage: Float[Tensor, ""]
    flaw: Int[Tensor, ""]  # 0: none; NOT_FINITE; ALIKE. See `refuse_flaws`


def leverage(features: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Return the share of the row that is farthest from the mean: maxᵢ kᵢ / Σᵢ kᵢ with kᵢ = ‖xᵢ - μ‖², in [1/n, 1].

    Near 1, one massive token decides what CKA says. A ValueError says that a value is not finite, or all rows the same.

    >>> leverage([[1.0, 0.0], [-1.0, 0.0]]).item()
    0.5
    """
    return centred(features).leverage


def centred(features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Return the rows as `centre` gives them, at least in float32; see `refuse_flaws`."""
    if not features.numel():
        raise ValueError(f"{name} has shape {tuple(features.shape)}: give one row and one column or more")
    rows = centre(features.to(common_dtype([features])), name)
    refuse_flaws([rows])
    return rows


def centre(features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Return one layer as `centre_all` does."""
    return centre_all(features[None], [name])[0]


def centre_all(features: Float[Tensor, "l n d"], names: Sequence[str], is_own: bool = False) -> list[CentredRows]:
    """Shift and scale the rows of layers, differentiably as far as a shift- and scale-invariant measure can tell.

    HSIC forgives any shift, so it is chosen for its digits. Under the plain mean one massive token would leave a large
    offset in every other row; weights 1 / (kᵢ + mean k) leave it out. Rows may be of any size, as they are divided by
    a power of two first. A GPU need not be waited for at every layer, as flaws are looked at later: `refuse_flaws`.
    Rows of its own are changed in place: new memory costs several times as much as a pass over it.
    """
    with torch.no_grad():
        size = size_of(features, (1, 2))
    rows = features.div_(size[:, None, None]) if is_own else features / size[:, None, None]
    with torch.no_grad():  # constants for a gradient
        mean = rows.mean(1, keepdim=True)
        rows.sub_(mean)
        distances = torch.linalg.vector_norm(rows, dim=2).square()
        spread = distances.mean(1)
        flaws = flaw_of(spread, mean.square().sum((1, 2)), features.dtype)
        weights = 1 / (distances + spread[:, None])
        rows.sub_(weights[:, None] @ rows / weights.sum(1)[:, None, None])
        scale = spread.sqrt()
    scales, leverages = scale.double() * size, distances.amax(1) / distances.sum(1)
    return [*map(CentredRows, names, rows.div_(scale[:, None, None]), scales, leverages, flaws)]


@torch.no_grad()
def centre_groups(groups: RowGroups, features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Shift the rows of every group about its typical point, and scale all of them; see `centre`."""
    rows = features[groups.order]
    size = size_of(rows)
    rows /= size
    offset, apart = rows.new_zeros(()), rows.new_empty(len(rows))
    for block, distances in zip(groups.blocks(rows), groups.blocks(apart), strict=True):
        mean = block.mean(1, keepdim=True)
        offset = offset + block.shape[1] * mean.square().sum()
        block -= mean
        distances.copy_(torch.linalg.vector_norm(block, dim=2).square())
    spread = apart.mean()
    flaw = flaw_of(spread, offset / len(rows), features.dtype)
    for block, distances in zip(groups.blocks(rows), groups.blocks(apart), strict=True):
        weights = 1 / (distances + spread)
        block -= weights[:, None] @ block / weights.sum(1)[:, None, None]
    scale = spread.sqrt()
    return CentredRows(name, rows.div_(scale), scale.double() * size, apart.max() / apart.sum(), flaw)


def size_of(features: Float[Tensor, "..."], over: tuple[int, ...] = ()) -> Float[Tensor, "*l"]:
    """Return the power of two below the largest absolute value over all axes, or these: division by it is exact."""
    exponent = torch.frexp(torch.maximum(-features.amin(over), features.amax(over))).exponent - 1
    return torch.ldexp(torch.ones_like(exponent, dtype=features.dtype), exponent)


def flaw_of(spread: Float[Tensor, "*l"], offset: Float[Tensor, "*l"], dtype: torch.dtype) -> Int[Tensor, "*l"]:
    return torch.where(spread.isfinite(), ALIKE * all_alike(spread, offset, dtype), NOT_FINITE)


def refuse_flaws(layers: Sequence[CentredRows], alike: str = "all rows are the same") -> None:
    """Look at all layers at once; a ValueError of the first that is not finite, or the same up to rounding."""
    reasons = {NOT_FINITE: "a value is not finite, or too large", ALIKE: f"{alike}, or differ by too little"}
    for layer, flaw in zip(layers, torch.stack([layer.flaw for layer in layers]).tolist(), strict=True):
        if flaw:
            raise ValueError(f"{layer.name}: {reasons[flaw]} for {layer.rows.dtype}")
