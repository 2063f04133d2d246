"""Rows about their typical point and in units of their typical norm: what keeps the digits of float32 Gram matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.kernels.hsic import ROUNDINGS

NOT_FINITE, ALIKE = 1, 2


class CentredRows(NamedTuple):
    name: str  # what an error calls them
    rows: Float[Tensor, "n d"]  # (x - shift) / scale
    scale: Float[Tensor, ""]  # root of the mean squared distance from the mean
    leverage: Float[Tensor, ""]
    flaw: Int[Tensor, ""]  # 0: none; NOT_FINITE; ALIKE. See `refuse_flaws`


class Workspace:
    """Memory of one batch that the next one takes over: fresh pages would cost a fifth of the time.

    It is never copied, saved or sent: a copy starts empty.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}

    def take(self, slot: int, like: Tensor) -> Tensor:
        """Return uninitialised memory of this shape; what the slot held before is lost."""
        held = self._buffers.get(slot)
        if held is None or held.numel() < like.numel() or (held.dtype, held.device) != (like.dtype, like.device):
            with torch.inference_mode(False):  # or it could not be written to outside that mode
                held = self._buffers[slot] = like.new_empty(like.numel())
        return held[: like.numel()].view(like.shape)

    def __reduce__(self) -> tuple[type[Workspace], tuple[()]]:
        return Workspace, ()


def leverage(features: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Return the share of the row that is farthest from the mean: maxᵢ kᵢ / Σᵢ kᵢ with kᵢ = ‖xᵢ - μ‖², in [1/n, 1].

    Near 1, one massive token decides what CKA says.

    Raises:
        ValueError: A value is not finite, or all rows are the same.
    """
    return centred(features).leverage


def centred(features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Return the rows as `centre` gives them, in their own dtype and at least in float32, if they can be compared.

    Raises:
        ValueError: A value is not finite, or all rows are the same.
    """
    rows = centre(features.to(common_dtype([features])), name)
    refuse_flaws([rows])
    return rows


def centre(features: Float[Tensor, "n d"], name: str = "features", out: Tensor | None = None) -> CentredRows:
    """Shift and scale the rows, differentiably as far as a shift- and scale-invariant measure can tell.

    HSIC forgives any shift, so it is chosen for its digits. Under the plain mean one massive token would leave a large
    offset in every other row; weights 1 / (kᵢ + mean k) leave it out. Shift and scale get no gradient: CKA has none.
    What cannot be compared is told by `refuse_flaws`, so that a GPU need not be waited for at every layer.

    Args:
        features: The rows, in float32 or float64.
        name: What an error calls them.
        out: Memory for the centred rows, where no gradient is wanted.
    """
    with torch.no_grad():
        mean = features.mean(0)
        apart = torch.sub(features, mean, out=out)
        distances = torch.linalg.vector_norm(apart, dim=1).square()
        spread = distances.mean()
        flaw = flaw_of(spread, mean.square().sum(), features.dtype)
        weights = 1 / (distances + spread)
        shift = mean + weights @ apart / weights.sum()
        scale = spread.sqrt()
    rows = torch.sub(features, shift, out=out)
    rows = rows.div_(scale) if out is not None else rows / scale
    return CentredRows(name, rows, scale, distances.max() / distances.sum(), flaw)


def flaw_of(spread: Float[Tensor, ""], offset: Float[Tensor, ""], dtype: torch.dtype) -> Int[Tensor, ""]:
    """Return what keeps rows of that mean squared distance from their mean from being compared, as a number."""
    return torch.where(spread.isfinite(), ALIKE * all_alike(spread, offset, dtype), NOT_FINITE)


def refuse_flaws(layers: Sequence[CentredRows], alike: str = "all rows are the same") -> None:
    """Look at all layers at once, and refuse the first that cannot be compared.

    Args:
        layers: At least one.
        alike: What the error calls rows that are all alike.

    Raises:
        ValueError: A value is not finite, or all rows are the same up to rounding.
    """
    for layer, flaw in zip(layers, torch.stack([layer.flaw for layer in layers]).tolist(), strict=True):
        if flaw == NOT_FINITE:
            raise ValueError(f"{layer.name}: a value is not finite, or too large for {layer.rows.dtype}")
        if flaw == ALIKE:
            within = f"or differ by too little for {layer.rows.dtype}"
            raise ValueError(f"{layer.name}: {alike}, {within}, so there is no variance to compare")


def all_alike(spread: Float[Tensor, "*b"], offset: Float[Tensor, "*b"], dtype: torch.dtype) -> Bool[Tensor, "*b"]:
    """Return whether squared distances from the mean are what rounding leaves of the squared offset of that mean."""
    return spread <= (ROUNDINGS * torch.finfo(dtype).eps) ** 2 * offset


def common_dtype(features: Iterable[Tensor]) -> torch.dtype:
    """Return the widest dtype, and at least float32."""
    return reduce(torch.promote_types, (x.dtype for x in features), torch.float32)
