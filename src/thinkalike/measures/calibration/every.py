"""Every measure of layer pairs that goes by the one contract, by name."""

from __future__ import annotations

from thinkalike.measures.calibration.contract import LayerMeasure
from thinkalike.measures.distances.distance_correlation import DISTANCE_CORRELATION, RANKED_DISTANCES, UNBIASED_CKA
from thinkalike.measures.neighbours.sets import NEIGHBOURS, neighbour_measure
from thinkalike.measures.outputs.divergence import DISAGREEMENT, JENSEN_SHANNON
from thinkalike.measures.shape.procrustes import PROCRUSTES
from thinkalike.measures.shape.soft_matching import SOFT_MATCHING
from thinkalike.measures.shape.subspaces import KEPT, svcca_measure

OUTPUTS = ("jsd", "disagreement")  # those of logits; the others are of states


def layer_measures(neighbours: int = NEIGHBOURS, kept: float = KEPT) -> dict[str, LayerMeasure]:
    """Return all of them by the names that `measure=` has, see `LayerMeasure`.

    Args:
        neighbours: k of measures of nearest neighbours.
        kept: The share of the variance that SVCCA keeps.
    """
    return {
        "cka": UNBIASED_CKA,
        "token_rsa": RANKED_DISTANCES,
        "procrustes": PROCRUSTES,
        "svcca": svcca_measure(kept),
        "soft_matching": SOFT_MATCHING,
        "dcor": DISTANCE_CORRELATION,
        "mknn": neighbour_measure("mutual", neighbours),
        "jaccard": neighbour_measure("jaccard", neighbours),
        "second_order_cosine": neighbour_measure("second order cosine", neighbours),
        "jsd": JENSEN_SHANNON,
        "disagreement": DISAGREEMENT,
    }
