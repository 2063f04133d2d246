"""What the HSICs of many batches say: CKA of all layer pairs, differences, a distance, each with its interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.calibration.chance import CalibratedEstimate, Chance, chance_of
from thinkalike.measures.kernels.kernel_alignment import alignment
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.jackknifing import jackknife, leave_one_out


@dataclass(frozen=True, eq=False)
class ModelDistance(Estimate):
    """The distance between two models in radians, see `CKAResult.distance`."""

    clipped: int  # CKA values outside [-1, 1], which only rounding can give


@dataclass(frozen=True, eq=False, repr=False)
class CKAResult(CalibratedEstimate):
    """CKA between l layers of a source and m of a target, with 95 % jackknife intervals over batches.

    `value`, `low` and `high` are (l, m); `chance` is what permutations say of them, None unless there were some.
    """

    leverage_source: Float[Tensor, " l"]  # largest of any batch, see `leverage`
    leverage_target: Float[Tensor, " m"]
    hsics: Float[Tensor, "b k k"]  # of each batch in the order of their numbers; k = l + m
    aggregate: str
    left_out: bool = False  # all rows were compared at once, and `hsics` are what each part of them adds

    label: ClassVar[str] = "CKA"

    def difference(self, first: tuple[int, int], second: tuple[int, int]) -> Estimate:
        """Return the CKA of one layer pair minus that of another, paired over batches.

        Args:
            first, second: The layer of the source and the layer of the target.
        """
        (a, b), (c, d) = first, second
        whole, replicates = self._across(_mean), self._across(leave_one_out)
        return jackknife(whole[a, b] - whole[c, d], replicates[:, a, b] - replicates[:, c, d])

    def distance(self) -> ModelDistance:
        """Return the `arc_length` of the CKA of corresponding layers, for models of equal depth.

        Raises:
            ValueError: The models differ in depth.
        """
        depths = self.value.shape
        if depths[0] != depths[1]:
            raise ValueError(f"the distance pairs up layers of equally deep models, not of {tuple(depths)} layers")
        layers, replicates = (self._across(mean).diagonal(dim1=-2, dim2=-1) for mean in (_mean, leave_one_out))
        distance = jackknife(arc_length(layers), arc_length(replicates))
        return ModelDistance(distance.value, distance.low, distance.high, int((layers.abs() > 1).sum()))

    def convergence(self) -> Float[Tensor, "b l m"]:
        """Return the CKA of the first batch, of the first two, and so on.

        Raises:
            ValueError: All rows were compared at once; what a part of them adds may be negative, and has no CKA.
        """
        if self.left_out:
            raise ValueError("all rows were compared at once, so there are no batches from which CKA settles")
        return self._across(_running_mean)

    def _across(self, mean: Callable[[Tensor], Tensor]) -> Float[Tensor, "*b l m"]:
        depth = len(self.value)
        return _ckas(self.hsics, self.aggregate, mean)[..., :depth, depth:]


class Permuted(NamedTuple):
    """What permutations leave of b batches: the HSICs of each, those by chance, and the fewest documents of a batch."""

    hsics: Float[Tensor, "b p l m"]
    levels: Float[Tensor, "b l m"]
    documents: int


def summarise(
    hsics: Float[Tensor, "b k k"],
    permuted: Permuted | None,
    leverages: Float[Tensor, "b k"],
    depth: int,
    aggregate: str,
    rows_used: float | None = None,
    left_out: bool = False,
) -> CKAResult:
    """Return the result of a run from what each of its batches left; `depth` is the number of source layers."""
    most = leverages.amax(0)
    whole, replicates = (_ckas(hsics, aggregate, mean) for mean in (_mean, leave_one_out))
    across = jackknife(whole[:depth, depth:], replicates[:, :depth, depth:])
    return CKAResult(
        across.value,
        across.low,
        across.high,
        within_source=jackknife(whole[:depth, :depth], replicates[:, :depth, :depth]),
        within_target=jackknife(whole[depth:, depth:], replicates[:, depth:, depth:]),
        batches=len(hsics),
        chance=None if permuted is None else _chance(hsics, permuted, depth, aggregate),
        leverage_source=most[:depth],
        leverage_target=most[depth:],
        hsics=hsics,
        aggregate=aggregate,
        rows_used=rows_used,
        left_out=left_out,
    )


def _chance(hsics: Tensor, permuted: Permuted, depth: int, aggregate: str) -> Chance:
    def ckas(across: Tensor | None, mean: Callable[[Tensor], Tensor]) -> Tensor:
        """Return CKA across; permutations of rows change the HSICs across, and leave the norms as they are."""
        if across is None:
            return _ckas(hsics, aggregate, mean)[..., :depth, depth:]
        moved = hsics.clone()
        moved[:, :depth, depth:] = across
        return _ckas(moved, aggregate, mean)[..., :depth, depth:]

    values, levels = ((ckas(each, _mean), ckas(each, leave_one_out)) for each in (None, permuted.levels))
    nulls = torch.stack([ckas(each, _mean) for each in permuted.hsics.unbind(1)])
    return chance_of(values, levels, nulls, permuted.documents)


def _ckas(hsics: Tensor, aggregate: str, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """Return CKA with the mean over batches before the ratio (Nguyen et al. 2021) or after it (Brown et al. 2023)."""
    return alignment(mean(hsics)) if aggregate == "ratio_of_means" else mean(alignment(hsics))


def _mean(values: Float[Tensor, " b *s"]) -> Float[Tensor, "*s"]:
    return values.mean(0)


def _running_mean(values: Float[Tensor, " b *s"]) -> Float[Tensor, " b *s"]:
    counts = torch.arange(1, len(values) + 1, device=values.device).view(-1, *[1] * (values.ndim - 1))
    return values.cumsum(0) / counts


def arc_length(ckas: Float[Tensor, "*b l"]) -> Float[Tensor, "*b"]:
    """Return √Σ arccos²(CKA) over l layers, in [0, π √l] radians (Brown et al. 2023, eq. 2).

    CKA is clipped to [-1, 1], which the paper leaves out: rounding can take it beyond.
    """
    return ckas.clamp(-1, 1).arccos().square().sum(-1).sqrt()
