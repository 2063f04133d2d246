"""CKA of all layer pairs of two models, gathered batch by batch, by any number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.accumulators import LayerMeans, Record
from thinkalike.measures.chance import LayerPairEstimate
from thinkalike.measures.estimates import PARTS, Estimate, jackknife
from thinkalike.measures.kernel_alignment import alignment, check_choices, cka_measure


class CKAMeans(LayerMeans):
    """CKA of batches as all measures of layer pairs are gathered; `thinkalike.CKA` is this as a metric of torchmetrics.

    For its options see `CKA`.
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
    ):
        check_choices(estimator=estimator, aggregate=aggregate, kernel=kernel, flatten=flatten, given=given)
        if given == "token" and (kernel, flatten) != ("linear", "token"):
            raise ValueError(f"given=token compares single tokens by kernel=linear, not {kernel} of flatten={flatten}")
        measure, after = cka_measure(estimator, kernel, flatten), aggregate == "mean_of_ratios"
        super().__init__(source_layers, target_layers, measure, permutations, given=given, after_ratio=after)
        self.aggregate = aggregate

    def compute(self) -> CKAResult:
        """Return the CKA of all batches so far, with intervals; see `LayerMeans.compute`."""
        return self.result(self._columns())

    def result(self, columns: Record) -> CKAResult:
        """Return the CKA of these batches, with intervals."""
        estimate, depth = super().result(columns), self.source_layers
        most, without = columns["leverages"].amax(0), self._finished(columns)[1:, :depth, depth:]
        sides: dict[str, Any] = {"leverage_source": most[:depth], "leverage_target": most[depth:]}
        hsics = columns["values"][:, 0]
        return CKAResult(
            **vars(estimate),
            **sides,
            hsics=hsics,
            without=without,
            aggregate=self.aggregate,
            is_unbiased=self._is_unbiased,
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what a batch records beside its documents, by name; one batch alone has a null."""
        l, m, p = self.source_layers, self.target_layers, self.permutations  # noqa: E741
        within = {"used": (2,)} if self.given == "token" else {}
        nulls = {"null": (l, m), "tested": (1 + p, l, m), "moved": ()} if p else {}
        return {"values": (1 + PARTS, l + m, l + m), "leverages": (l + m,), **within, **nulls}


@dataclass(frozen=True, eq=False)
class ModelDistance(Estimate):
    """The distance between two models in radians, see `CKAResult.distance`."""

    clipped: int  # CKA values outside [-1, 1], which only rounding can give


@dataclass(frozen=True, eq=False, repr=False)
class CKAResult(LayerPairEstimate):
    """CKA between l layers of a source and m of a target, with 95 % jackknife intervals over documents.

    `value`, `low` and `high` are (l, m).
    """

    leverage_source: Float[Tensor, " l"]  # largest of any batch, see `leverage`
    leverage_target: Float[Tensor, " m"]
    hsics: Float[Tensor, "b k k"]  # of each batch in the order of their numbers; k = l + m
    without: Float[Tensor, "p l m"]  # the value without each part of the documents; none of fewer than 8 documents
    aggregate: str
    is_unbiased: bool  # whether intervals leave out the bias by rows of one document, see `jackknife`

    label: ClassVar[str] = "CKA"

    def difference(self, first: tuple[int, int], second: tuple[int, int]) -> Estimate:
        """Return the CKA of one layer pair, (source, target), minus that of another, paired over documents."""
        (a, b), (c, d) = first, second
        return self._interval(self.value[a, b] - self.value[c, d], self.without[:, a, b] - self.without[:, c, d])

    def distance(self) -> ModelDistance:
        """Return the `arc_length` of the CKA of corresponding layers; a ValueError if the models differ in depth."""
        depths = self.value.shape
        if depths[0] != depths[1]:
            raise ValueError(f"the distance pairs up layers of equally deep models, not of {tuple(depths)} layers")
        layers, without = (each.diagonal(dim1=-2, dim2=-1) for each in (self.value, self.without))
        distance = self._interval(arc_length(layers), arc_length(without))
        return ModelDistance(distance.value, distance.low, distance.high, int((layers.abs() > 1).sum()))

    def _interval(self, value: Float[Tensor, "*s"], without: Float[Tensor, " p *s"]) -> Estimate:
        return jackknife(value, without, value if self.is_unbiased else None)

    def convergence(self) -> Float[Tensor, "b l m"]:
        """Return the CKA of the first batch, of the first two, and so on."""
        depth, is_before = len(self.value), self.aggregate == "ratio_of_means"
        counts = torch.arange(1, len(self.hsics) + 1, device=self.hsics.device)[:, None, None]
        sums = (self.hsics if is_before else alignment(self.hsics)).cumsum(0) / counts
        return (alignment(sums) if is_before else sums)[..., :depth, depth:]


def arc_length(ckas: Float[Tensor, "*b l"]) -> Float[Tensor, "*b"]:
    """Return √Σ arccos²(CKA) over l layers, in [0, π √l] radians (Brown et al. 2023, eq. 2).

    CKA is clipped to [-1, 1], which the paper leaves out: rounding can take it beyond.
    """
    return ckas.clamp(-1, 1).arccos().square().sum(-1).sqrt()
