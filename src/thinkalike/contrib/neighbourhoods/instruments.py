"""measure=jaccard and measure=second_order_cosine, as declarations.

python analyze.py measure=jaccard measure.neighbours=20 measure.null=true model=gpt2 model@target=mamba-130m
"""

from __future__ import annotations

from thinkalike.contrib.neighbourhoods.measures import jaccard_measure, second_order_measure
from thinkalike.instruments.layer_pairs.declared import Declared, WithNeighbours, declare

DECLARED = {
    "jaccard": Declared(
        "Jaccard index of neighbours", lambda measure: jaccard_measure(measure.neighbours), settings=WithNeighbours
    ),
    "second_order_cosine": Declared(
        "second-order cosine", lambda measure: second_order_measure(measure.neighbours), settings=WithNeighbours
    ),
}
globals().update(declare(DECLARED, __name__))  # where entry points find them
