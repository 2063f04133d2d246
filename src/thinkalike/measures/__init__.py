"""Measures: torch only, pure functions of tensors and small modules. They know no models, files or configuration.

Code outside imports from here, and each name is loaded when it is first used.

Every function here takes NumPy arrays, DataFrames and lists, too, where it wants a tensor; see `thinkalike.arguments`.
The modules below have the same functions for tensors alone.
"""

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; test_install.py compares it with what is loaded
    from thinkalike.arguments import takes_arrays
    from thinkalike.measures import (
        chance,
        changes,
        closed_forms,
        estimates,
        kernel_alignment,
        losses,
        neighbour_sets,
        neighbours,
        outputs,
        rows,
        shape,
        singular_vectors,
        unit_matching,
    )
    from thinkalike.measures.chance import Calibrated as Calibrated
    from thinkalike.measures.chance import Chance as Chance
    from thinkalike.measures.chance import calibrate as calibrate  # which takes arrays itself
    from thinkalike.measures.closed_forms import AffineMap as AffineMap
    from thinkalike.measures.closed_forms import Moments as Moments
    from thinkalike.measures.closed_forms import PairStatistics as PairStatistics
    from thinkalike.measures.contract import LayerMeasure as LayerMeasure
    from thinkalike.measures.distances import comparators, neural, of_layers
    from thinkalike.measures.distances.comparators import COMPARATORS as COMPARATORS
    from thinkalike.measures.distances.comparators import WHITENED as WHITENED
    from thinkalike.measures.distances.neural import NOISES as NOISES
    from thinkalike.measures.distances.neural import Mantel as Mantel
    from thinkalike.measures.distances.neural import NeuralDistances as NeuralDistances
    from thinkalike.measures.distances.of_layers import DistanceCorrelation as DistanceCorrelation
    from thinkalike.measures.distances.of_layers import TokenRSA as TokenRSA
    from thinkalike.measures.estimates import FEW as FEW
    from thinkalike.measures.estimates import Estimate as Estimate
    from thinkalike.measures.estimates import RowGroups as RowGroups
    from thinkalike.measures.kernel_alignment import CKAMeasure as CKAMeasure
    from thinkalike.measures.layer_means import Accumulator as Accumulator
    from thinkalike.measures.layer_means import LayerMeans as LayerMeans
    from thinkalike.measures.layer_means import LayerPairEstimate as LayerPairEstimate
    from thinkalike.measures.losses import CHUNK as CHUNK
    from thinkalike.measures.losses import OutputMatch as OutputMatch
    from thinkalike.measures.metric import CKA as CKA
    from thinkalike.measures.metric import CKAResult as CKAResult
    from thinkalike.measures.mlem import importance
    from thinkalike.measures.mlem.differentiable import DifferentiableMLEM as DifferentiableMLEM
    from thinkalike.measures.mlem.encoding_model import MLEM as MLEM
    from thinkalike.measures.mlem.features import FeatureEncoder as FeatureEncoder
    from thinkalike.measures.mlem.features import Features as Features
    from thinkalike.measures.mlem.importance import Importance as Importance
    from thinkalike.measures.neighbour_sets import Jaccard as Jaccard
    from thinkalike.measures.neighbour_sets import SecondOrderCosine as SecondOrderCosine
    from thinkalike.measures.neighbours import MutualKNN as MutualKNN
    from thinkalike.measures.outputs import Disagreement as Disagreement
    from thinkalike.measures.outputs import JensenShannon as JensenShannon
    from thinkalike.measures.residual import ResidualStates as ResidualStates
    from thinkalike.measures.ridge import HeldOut as HeldOut
    from thinkalike.measures.ridge import Predictor as Predictor
    from thinkalike.measures.shape import Procrustes as Procrustes
    from thinkalike.measures.singular_vectors import SVCCA as SVCCA
    from thinkalike.measures.unit_matching import SoftMatching as SoftMatching

    two_sided = takes_arrays(changes.two_sided)
    permuted_rows = takes_arrays(chance.permuted_rows)
    bias_only = takes_arrays(closed_forms.bias_only)
    least_squares = takes_arrays(closed_forms.least_squares)
    procrustes = takes_arrays(closed_forms.procrustes)
    reduced_rank = takes_arrays(closed_forms.reduced_rank)
    comparable = takes_arrays(comparators.comparable)
    compare = takes_arrays(comparators.compare)
    mid_ranks = takes_arrays(comparators.mid_ranks)
    spearman = takes_arrays(comparators.spearman)
    weighted_tau = takes_arrays(comparators.weighted_tau)
    crossnobis = takes_arrays(neural.crossnobis)
    distance_vectors = takes_arrays(neural.distance_vectors)
    mantel = takes_arrays(neural.mantel)
    noise_covariance = takes_arrays(neural.noise_covariance)
    rsa = takes_arrays(neural.rsa)
    rsa_estimate = takes_arrays(neural.rsa_estimate)
    distance_correlation = takes_arrays(of_layers.distance_correlation)
    bootstrap_interval = takes_arrays(estimates.bootstrap_interval)
    documents_and_seeds_interval = takes_arrays(estimates.documents_and_seeds_interval)
    effective_number = takes_arrays(estimates.effective_number)
    interval_around = takes_arrays(estimates.interval_around)
    jackknife = takes_arrays(estimates.jackknife)
    splits = takes_arrays(estimates.splits)
    stimulus_folds = takes_arrays(estimates.stimulus_folds)
    student_t = takes_arrays(estimates.student_t)
    sum_by_document = takes_arrays(estimates.sum_by_document)
    alignment = takes_arrays(kernel_alignment.alignment)
    arc_length = takes_arrays(kernel_alignment.arc_length)
    cka = takes_arrays(kernel_alignment.cka)
    hsic0 = takes_arrays(kernel_alignment.hsic0)
    hsic1 = takes_arrays(kernel_alignment.hsic1)
    compare_outputs = takes_arrays(losses.compare_outputs)
    token_kl = takes_arrays(losses.token_kl)
    token_loss = takes_arrays(losses.token_loss)
    unigram_entropy = takes_arrays(losses.unigram_entropy)
    feature_importance = takes_arrays(importance.feature_importance)
    fold_interval = takes_arrays(importance.fold_interval)
    split_half_reference = takes_arrays(importance.split_half_reference)
    jaccard = takes_arrays(neighbour_sets.jaccard)
    second_order_cosine = takes_arrays(neighbour_sets.second_order_cosine)
    mutual_knn = takes_arrays(neighbours.mutual_knn)
    disagreement = takes_arrays(outputs.disagreement)
    jensen_shannon = takes_arrays(outputs.jensen_shannon)
    leverage = takes_arrays(rows.leverage)
    rows_of = takes_arrays(rows.rows_of)
    procrustes_distance = takes_arrays(shape.procrustes_distance)
    svcca = takes_arrays(singular_vectors.svcca)
    soft_matching = takes_arrays(unit_matching.soft_matching)
    transport_plan = takes_arrays(unit_matching.transport_plan)

MODULES: dict[str, tuple[str, ...]] = {  # by module, the names that it has
    "changes": ("two_sided",),
    "chance": ("calibrate", "Calibrated", "Chance", "permuted_rows"),
    "closed_forms": (
        "AffineMap",
        "bias_only",
        "least_squares",
        "Moments",
        "PairStatistics",
        "procrustes",
        "reduced_rank",
    ),
    "contract": ("LayerMeasure",),
    "distances.comparators": (
        "comparable",
        "COMPARATORS",
        "compare",
        "mid_ranks",
        "spearman",
        "weighted_tau",
        "WHITENED",
    ),
    "distances.neural": (
        "crossnobis",
        "distance_vectors",
        "Mantel",
        "mantel",
        "NeuralDistances",
        "noise_covariance",
        "NOISES",
        "rsa",
        "rsa_estimate",
    ),
    "distances.of_layers": ("distance_correlation", "DistanceCorrelation", "TokenRSA"),
    "estimates": (
        "bootstrap_interval",
        "documents_and_seeds_interval",
        "effective_number",
        "Estimate",
        "FEW",
        "interval_around",
        "jackknife",
        "RowGroups",
        "splits",
        "stimulus_folds",
        "student_t",
        "sum_by_document",
    ),
    "kernel_alignment": ("alignment", "arc_length", "cka", "CKAMeasure", "hsic0", "hsic1"),
    "layer_means": ("Accumulator", "LayerMeans", "LayerPairEstimate"),
    "losses": ("CHUNK", "compare_outputs", "OutputMatch", "token_kl", "token_loss", "unigram_entropy"),
    "metric": ("CKA", "CKAResult"),
    "mlem.differentiable": ("DifferentiableMLEM",),
    "mlem.encoding_model": ("MLEM",),
    "mlem.features": ("FeatureEncoder", "Features"),
    "mlem.importance": ("feature_importance", "fold_interval", "Importance", "split_half_reference"),
    "neighbour_sets": ("Jaccard", "jaccard", "second_order_cosine", "SecondOrderCosine"),
    "neighbours": ("mutual_knn", "MutualKNN"),
    "outputs": ("Disagreement", "disagreement", "jensen_shannon", "JensenShannon"),
    "residual": ("ResidualStates",),
    "ridge": ("HeldOut", "Predictor"),
    "rows": ("leverage", "rows_of"),
    "shape": ("Procrustes", "procrustes_distance"),
    "singular_vectors": ("SVCCA", "svcca"),
    "unit_matching": ("soft_matching", "SoftMatching", "transport_plan"),
}
_HOMES = {name: module for module, names in MODULES.items() for name in names}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:  # a checker is to see a name that is not there

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'thinkalike.measures' has no attribute '{name}'")
        found = getattr(import_module(f"thinkalike.measures.{_HOMES[name]}"), name)
        if isfunction(found):
            from thinkalike.arguments import takes_arrays

            found = takes_arrays(found)
            found.__module__ = __name__  # where pickle finds it
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return [*__all__]
