"""The declarations of SVCCA, soft matching, the Jaccard index and the second-order cosine.

python analyze.py measure=jaccard measure.neighbours=20 measure.null=true model=gpt2 model@target=mamba-130m
"""

from __future__ import annotations

from dataclasses import dataclass

from thinkalike.config import ranged
from thinkalike.contrib.kin.neighbours import jaccard_measure, second_order_measure
from thinkalike.contrib.kin.shape import SOFT_MATCHING, svcca_measure
from thinkalike.instruments.layer_pairs.declared import ComparedAgain, Declared, WithNeighbours, declare


@dataclass
class WithKept(ComparedAgain):
    """The settings of a measure of principal components."""

    kept: float = ranged(0.99, above=0, most=1)  # share of the variance that components hold


DECLARED = {
    "svcca": Declared("SVCCA", lambda measure: svcca_measure(measure.kept), settings=WithKept),
    "soft_matching": Declared("soft matching", lambda _: SOFT_MATCHING),
    "jaccard": Declared(
        "Jaccard index of neighbours", lambda measure: jaccard_measure(measure.neighbours), settings=WithNeighbours
    ),
    "second_order_cosine": Declared(
        "second-order cosine", lambda measure: second_order_measure(measure.neighbours), settings=WithNeighbours
    ),
}
globals().update(declare(DECLARED, __name__))  # where entry points find them
