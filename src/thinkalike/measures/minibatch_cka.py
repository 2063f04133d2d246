"""CKA of all layer pairs of two models, gathered batch by batch, by any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.accumulators import Accumulator, LayerMeans
from thinkalike.measures.chance import LayerPairEstimate
from thinkalike.measures.estimates import Estimate, jackknife, leave_one_out
from thinkalike.measures.kernel_alignment import alignment, check_choices, cka_measure


class CKA(LayerMeans):
    """Minibatch CKA of every layer of a source with every layer of a target (Nguyen et al. 2021).

    Each `update` takes one batch of n >= 4 rows from both models and keeps its HSICs in float64, some kB. The order and
    the split of the batches do not matter. A centred copy of the rows is in memory meanwhile. A
    tensor that stands for several layers, as where a model is compared with itself, costs one. Products of bfloat16
    and float16 states are taken in float32, which keeps the value of these states to 1e-7; the error of rounding states
    to bfloat16 is 1e-5 of benign states, 2e-4 with one massive token, and 1e-3 where a few dimensions have an offset of
    300 (1024 rows of width 256).

    Args:
        source_layers, target_layers: How many layers a batch brings.
        estimator, kernel: See `cka`.
        aggregate: "ratio_of_means", Σ HSIC / √(Σ HSIC Σ HSIC) over batches, or "mean_of_ratios", the mean of each
            batch's CKA (Brown et al. 2023), which is off if batches have few rows.
        flatten: What a row is, see `rows_of` (Brown et al. 2023, footnote 6).
        given: "token" compares rows within groups of one token, of which each has at least 4 rows: sums over groups,
            weighted by their rows, and over batches, come before the ratio. "none" compares all rows.
        permutations: How often to compare also with the target's documents permuted inside each batch, or given the
            token, its rows of each token; each takes as much time again. A p-value is at least 1 / (permutations + 1).
        left_out: Whether the first batch has all rows, and the others have all but a part of them, on which intervals
            rest, see `as_batches`; such batches have one aggregate.

    Raises:
        ValueError: An option is not known.
    """

    def __init__(
        self,
        source_layers: int,
        target_layers: int,
        *,
        estimator: str = "unbiased",
        aggregate: str = "ratio_of_means",
        kernel: str = "linear",
        flatten: str = "token",
        given: str = "none",
        permutations: int = 0,
        left_out: bool = False,
    ):
        check_choices(estimator=estimator, aggregate=aggregate, kernel=kernel, flatten=flatten, given=given)
        if given == "token" and (kernel, flatten) != ("linear", "token"):
            raise ValueError(
                f"given=token compares single tokens by kernel=linear, not {kernel} with flatten={flatten}"
            )
        measure = cka_measure(estimator, kernel, flatten)
        after = aggregate == "mean_of_ratios"
        super().__init__(source_layers, target_layers, measure, permutations, left_out, given=given, after_ratio=after)
        self.options = (estimator, kernel, flatten, given, permutations)
        self.aggregate = "ratio_of_means" if left_out else aggregate

    def compute(self) -> CKAResult:
        """Return the CKA of all batches so far, with intervals.

        Raises:
            ValueError: There was no batch.
        """
        estimate, columns, depth = super().compute(), self._columns(), self.source_layers
        common: dict[str, Any] = {item.name: getattr(estimate, item.name) for item in fields(estimate)}
        most, values = columns["leverages"].amax(0), self._values(columns)
        sides: dict[str, Any] = {"leverage_source": most[:depth], "leverage_target": most[depth:]}
        return CKAResult(**common, **sides, hsics=values, aggregate=self.aggregate, left_out=self.left_out)

    def merge_state(self, other: Accumulator) -> None:
        """Add the batches of another, see `Accumulator.merge_state`.

        Raises:
            ValueError: It has other options, or both have a batch of one number.
        """
        if not isinstance(other, CKA) or other.options != self.options:
            raise ValueError(f"batches of other options than {self.options} cannot be added")
        super().merge_state(other)


@dataclass(frozen=True, eq=False)
class ModelDistance(Estimate):
    """The distance between two models in radians, see `CKAResult.distance`."""

    clipped: int  # CKA values outside [-1, 1], which only rounding can give


@dataclass(frozen=True, eq=False, repr=False)
class CKAResult(LayerPairEstimate):
    """CKA between l layers of a source and m of a target, with 95 % jackknife intervals over batches.

    `value`, `low` and `high` are (l, m).
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
            ValueError: All rows were compared at once; the share of a part of them may be negative, and has no CKA.
        """
        if self.left_out:
            raise ValueError("all rows were compared at once, so there are no batches from which CKA settles")
        return self._across(_running_mean)

    def _across(self, mean: Callable[[Tensor], Tensor]) -> Float[Tensor, "*b l m"]:
        """Return CKA with the mean over batches before the ratio (Nguyen et al. 2021) or after (Brown et al. 2023)."""
        depth, is_before = len(self.value), self.aggregate == "ratio_of_means"
        ckas = alignment(mean(self.hsics)) if is_before else mean(alignment(self.hsics))
        return ckas[..., :depth, depth:]


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
