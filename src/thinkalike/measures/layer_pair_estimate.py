"""A measure of all layer pairs of two models, with intervals."""

from __future__ import annotations

import math
from typing import ClassVar, Required, TypedDict

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.measures import sample_size
from thinkalike.measures.chance import Chance
from thinkalike.measures.estimates import Estimate


class SizesOfDocuments(TypedDict):
    """How many rows and documents were compared; see `LayerPairEstimate`."""

    rows: int
    documents: int
    effective: float


class EstimateArguments(TypedDict, total=False):
    """The arguments of a `LayerPairEstimate`, see there."""

    across: Required[Estimate]
    batches: Required[int]
    documents: Required[int]
    rows: int | None
    effective: float | None
    fewest_effective: int
    within_source: Estimate | None
    within_target: Estimate | None
    rows_used: float | None
    chance: Chance | None


class LayerPairEstimate(Estimate):
    """A measure of l layers of a source with m of a target, (l, m), and within each model.

    Args:
        across: The values across the two models, with their intervals, (l, m).
        batches: How many batches there were.
        documents: How many documents there were.
        rows: How many rows were compared, in all batches together; None where it is not known.
        effective: How many documents of equal length the documents are worth; None where it is not
            known.
        fewest_effective: How many documents of equal length the documents must be worth for an
            interval.
        within_source, within_target: The values within each model, (l, l) and (m, m); None where
            they are not measured.
        rows_used: The share of the rows that were in groups of one token, where rows are compared
            within such groups.
        chance: The null by permutations; None without any.
    """

    label: ClassVar[str] = "value"  # what plots call a value

    def __init__(
        self,
        across: Estimate,
        batches: int,
        documents: int,
        *,
        rows: int | None = None,
        effective: float | None = None,
        fewest_effective: int = sample_size.FEWEST_GROUPS,
        within_source: Estimate | None = None,
        within_target: Estimate | None = None,
        rows_used: float | None = None,
        chance: Chance | None = None,
    ):
        """Store a measure of the layer pairs of two models, and how it came about.

        `across` has the values, with intervals, of each source layer with each target layer, which
        become those of this estimate. `within_source` and `within_target` are the values of each
        model's layers with each other. `batches`, `documents` and `rows` are how many were
        compared. `effective` is how many documents of equal length the documents are worth, and
        `fewest_effective` how many they must be worth for an interval. `rows_used` is the share of
        the rows that were in groups of one token, if rows are compared within such groups, and
        `chance` the null by permutations. What is None is not known, or was not measured.
        """
        super().__init__(*across, uncorrected=across.uncorrected)
        self.batches = batches
        self.documents = documents
        self.rows_used = rows_used
        self.chance = chance
        self.within_source = within_source
        self.within_target = within_target
        self.effective = effective
        self.fewest_effective = fewest_effective
        self.rows = rows

    def __repr__(self) -> str:
        """Return one line: numbers of layers and batches, the range of values, widest interval."""
        sources, targets = self.value.shape
        least, greatest = self.value.aminmax()
        return (
            f"{type(self).__name__}({sources} x {targets} layers, {self.batches} batches: "
            f"{least:.3f} to {greatest:.3f}, intervals at most {self.widest_interval():.3g} wide)"
        )

    @property
    def why_no_interval(self) -> str | None:
        """Why the documents are too few for an interval, in one sentence for users.

        What counts is how many documents of equal length they are worth. None if these are enough,
        or if their number is not known.
        """
        if self.effective is None:
            return None
        if sample_size.has_interval(self.effective, self.fewest_effective):
            return None
        return sample_size.why_no_interval(
            self.effective, self.documents, fewest=self.fewest_effective
        )

    def widest_interval(self) -> float:
        """Return the width of the widest interval of the values across and within the models.

        It is ∞ if the documents are too few for intervals, or if no layer pair has a value. Pairs
        whose value is NaN do not count, such as those of different layers for a measure that only
        compares each layer with the same layer of the other model.
        """
        widths = []
        for estimate in (self, self.within_source, self.within_target):
            if estimate is not None:
                has_value = ~estimate.value.isnan()
                widths.append((estimate.high - estimate.low)[has_value])
        all_widths = torch.cat(widths)
        if not len(all_widths):
            return math.inf
        return float(all_widths.max())


def sizes_of_documents(documents: Int[Tensor, " n"]) -> SizesOfDocuments:
    """Return how many rows and documents there are, and their effective number.

    "effective" is how many documents of equal length would tell as much.

    Args:
        documents: The number of the document of each row.
    """
    _, counts = documents.unique(return_counts=True)
    return {
        "rows": len(documents),
        "documents": len(counts),
        "effective": sample_size.effective_number(counts),
    }
