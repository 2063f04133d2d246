"""Measures: pure functions of tensors and small modules, which need torch only.

Code outside imports from here, and each name is loaded when it is first used.

Every function here takes NumPy arrays, DataFrames and lists, too, where it wants a tensor; see
`thinkalike.arguments`. The modules below have the same functions for tensors alone.
"""

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING

# what type checkers and editors see; test_install.py compares it with what is loaded
if TYPE_CHECKING:
    from thinkalike.arguments import takes_arrays
    from thinkalike.measures import (
        bootstrap,
        centred_rows,
        changes,
        closed_forms,
        estimates,
        folds,
        hsic,
        kernel_alignment,
        losses,
        neighbour_sets,
        neighbours,
        outputs,
        permutations,
        rows,
        sample_size,
        shape,
        singular_vectors,
        unit_matching,
    )
    from thinkalike.measures.accumulator import Accumulator as Accumulator
    from thinkalike.measures.calibration import Calibrated as Calibrated
    from thinkalike.measures.calibration import calibrate as calibrate  # which takes arrays itself
    from thinkalike.measures.chance import Chance as Chance
    from thinkalike.measures.closed_forms import AffineMap as AffineMap
    from thinkalike.measures.contract import LayerMeasure as LayerMeasure
    from thinkalike.measures.distances import comparators, of_layers, ranks
    from thinkalike.measures.distances import crossnobis as crossnobis_module
    from thinkalike.measures.distances import rsa as rsa_module
    from thinkalike.measures.distances.comparators import COMPARATORS as COMPARATORS
    from thinkalike.measures.distances.comparators import WHITENED as WHITENED
    from thinkalike.measures.distances.crossnobis import NOISES as NOISES
    from thinkalike.measures.distances.neural import NeuralDistances as NeuralDistances
    from thinkalike.measures.distances.of_layers import DistanceCorrelation as DistanceCorrelation
    from thinkalike.measures.distances.of_layers import TokenRSA as TokenRSA
    from thinkalike.measures.distances.rsa import Mantel as Mantel
    from thinkalike.measures.estimates import Estimate as Estimate
    from thinkalike.measures.kernel_alignment import CKAMeasure as CKAMeasure
    from thinkalike.measures.layer_means import LayerMeans as LayerMeans
    from thinkalike.measures.layer_pair_estimate import LayerPairEstimate as LayerPairEstimate
    from thinkalike.measures.losses import CHUNK as CHUNK
    from thinkalike.measures.losses import OutputMatch as OutputMatch
    from thinkalike.measures.metric import CKA as CKA
    from thinkalike.measures.metric import CKAResult as CKAResult
    from thinkalike.measures.mlem import importance, split_half
    from thinkalike.measures.mlem.differentiable import DifferentiableMLEM as DifferentiableMLEM
    from thinkalike.measures.mlem.encoding_model import MLEM as MLEM
    from thinkalike.measures.mlem.features import FeatureEncoder as FeatureEncoder
    from thinkalike.measures.mlem.features import Features as Features
    from thinkalike.measures.mlem.importance import Importance as Importance
    from thinkalike.measures.moments import Moments as Moments
    from thinkalike.measures.moments import PairStatistics as PairStatistics
    from thinkalike.measures.neighbour_sets import Jaccard as Jaccard
    from thinkalike.measures.neighbour_sets import SecondOrderCosine as SecondOrderCosine
    from thinkalike.measures.neighbours import MutualKNN as MutualKNN
    from thinkalike.measures.outputs import Disagreement as Disagreement
    from thinkalike.measures.outputs import JensenShannon as JensenShannon
    from thinkalike.measures.residual import ResidualStates as ResidualStates
    from thinkalike.measures.ridge import HeldOut as HeldOut
    from thinkalike.measures.ridge import Predictor as Predictor
    from thinkalike.measures.row_groups import FEW as FEW
    from thinkalike.measures.row_groups import RowGroups as RowGroups
    from thinkalike.measures.shape import Procrustes as Procrustes
    from thinkalike.measures.singular_vectors import SVCCA as SVCCA
    from thinkalike.measures.unit_matching import SoftMatching as SoftMatching

    two_sided = takes_arrays(changes.two_sided)
    permuted_rows = takes_arrays(permutations.permuted_rows)
    bias_only = takes_arrays(closed_forms.bias_only)
    least_squares = takes_arrays(closed_forms.least_squares)
    procrustes = takes_arrays(closed_forms.procrustes)
    reduced_rank = takes_arrays(closed_forms.reduced_rank)
    comparable = takes_arrays(comparators.comparable)
    compare = takes_arrays(comparators.compare)
    mid_ranks = takes_arrays(ranks.mid_ranks)
    spearman = takes_arrays(ranks.spearman)
    weighted_tau = takes_arrays(comparators.weighted_tau)
    crossnobis = takes_arrays(crossnobis_module.crossnobis)
    distance_vectors = takes_arrays(rsa_module.distance_vectors)
    mantel = takes_arrays(rsa_module.mantel)
    noise_covariance = takes_arrays(crossnobis_module.noise_covariance)
    rsa = takes_arrays(rsa_module.rsa)
    rsa_estimate = takes_arrays(rsa_module.rsa_estimate)
    distance_correlation = takes_arrays(of_layers.distance_correlation)
    bootstrap_interval = takes_arrays(bootstrap.bootstrap_interval)
    documents_and_seeds_interval = takes_arrays(bootstrap.documents_and_seeds_interval)
    effective_number = takes_arrays(sample_size.effective_number)
    interval_around = takes_arrays(estimates.interval_around)
    jackknife = takes_arrays(estimates.jackknife)
    splits = takes_arrays(folds.splits)
    stimulus_folds = takes_arrays(folds.stimulus_folds)
    student_t = takes_arrays(estimates.student_t)
    sum_by_document = takes_arrays(bootstrap.sum_by_document)
    alignment = takes_arrays(kernel_alignment.alignment)
    arc_length = takes_arrays(kernel_alignment.arc_length)
    cka = takes_arrays(kernel_alignment.cka)
    hsic0 = takes_arrays(hsic.hsic0)
    hsic1 = takes_arrays(hsic.hsic1)
    compare_outputs = takes_arrays(losses.compare_outputs)
    token_kl = takes_arrays(losses.token_kl)
    token_loss = takes_arrays(losses.token_loss)
    unigram_entropy = takes_arrays(losses.unigram_entropy)
    feature_importance = takes_arrays(importance.feature_importance)
    fold_interval = takes_arrays(importance.fold_interval)
    split_half_reference = takes_arrays(split_half.split_half_reference)
    jaccard = takes_arrays(neighbour_sets.jaccard)
    second_order_cosine = takes_arrays(neighbour_sets.second_order_cosine)
    mutual_knn = takes_arrays(neighbours.mutual_knn)
    disagreement = takes_arrays(outputs.disagreement)
    jensen_shannon = takes_arrays(outputs.jensen_shannon)
    leverage = takes_arrays(centred_rows.leverage)
    rows_of = takes_arrays(rows.rows_of)
    procrustes_distance = takes_arrays(shape.procrustes_distance)
    svcca = takes_arrays(singular_vectors.svcca)
    soft_matching = takes_arrays(unit_matching.soft_matching)
    transport_plan = takes_arrays(unit_matching.transport_plan)

MODULES: dict[str, tuple[str, ...]] = {  # by module, the names that it has
    "accumulator": ("Accumulator",),
    "bootstrap": ("bootstrap_interval", "documents_and_seeds_interval", "sum_by_document"),
    "calibration": ("calibrate", "Calibrated"),
    "centred_rows": ("leverage",),
    "chance": ("Chance",),
    "changes": ("two_sided",),
    "closed_forms": ("AffineMap", "bias_only", "least_squares", "procrustes", "reduced_rank"),
    "contract": ("LayerMeasure",),
    "distances.comparators": ("comparable", "COMPARATORS", "compare", "weighted_tau", "WHITENED"),
    "distances.crossnobis": ("crossnobis", "noise_covariance", "NOISES"),
    "distances.neural": ("NeuralDistances",),
    "distances.of_layers": ("distance_correlation", "DistanceCorrelation", "TokenRSA"),
    "distances.ranks": ("mid_ranks", "spearman"),
    "distances.rsa": ("distance_vectors", "Mantel", "mantel", "rsa", "rsa_estimate"),
    "estimates": ("Estimate", "interval_around", "jackknife", "student_t"),
    "folds": ("splits", "stimulus_folds"),
    "hsic": ("hsic0", "hsic1"),
    "kernel_alignment": ("alignment", "arc_length", "cka", "CKAMeasure"),
    "layer_means": ("LayerMeans",),
    "layer_pair_estimate": ("LayerPairEstimate",),
    "losses": (
        "CHUNK",
        "compare_outputs",
        "OutputMatch",
        "token_kl",
        "token_loss",
        "unigram_entropy",
    ),
    "metric": ("CKA", "CKAResult"),
    "mlem.differentiable": ("DifferentiableMLEM",),
    "mlem.encoding_model": ("MLEM",),
    "mlem.features": ("FeatureEncoder", "Features"),
    "mlem.importance": ("feature_importance", "fold_interval", "Importance"),
    "mlem.split_half": ("split_half_reference",),
    "moments": ("Moments", "PairStatistics"),
    "neighbour_sets": ("Jaccard", "jaccard", "second_order_cosine", "SecondOrderCosine"),
    "neighbours": ("mutual_knn", "MutualKNN"),
    "outputs": ("Disagreement", "disagreement", "jensen_shannon", "JensenShannon"),
    "permutations": ("permuted_rows",),
    "residual": ("ResidualStates",),
    "ridge": ("HeldOut", "Predictor"),
    "row_groups": ("FEW", "RowGroups"),
    "rows": ("rows_of",),
    "sample_size": ("effective_number",),
    "shape": ("Procrustes", "procrustes_distance"),
    "singular_vectors": ("SVCCA", "svcca"),
    "unit_matching": ("soft_matching", "SoftMatching", "transport_plan"),
}
_HOMES = {name: module for module, names in MODULES.items() for name in names}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:  # a type checker should report a name that does not exist

    def __getattr__(name: str) -> object:
        """Import a name of this package when it is first used, and keep it.

        Functions of tensors are wrapped such that they take arrays, tables and lists, too.
        """
        if name not in _HOMES:
            raise AttributeError(f"module 'thinkalike.measures' has no attribute '{name}'")
        attribute = getattr(import_module(f"thinkalike.measures.{_HOMES[name]}"), name)
        if isfunction(attribute):
            from thinkalike.arguments import takes_arrays

            attribute = takes_arrays(attribute)
            attribute.__module__ = __name__  # where pickle looks for it
        globals()[name] = attribute
        return attribute


def __dir__() -> list[str]:
    return [*__all__]
