"""What `task=` and `measure=` can be, and the class of each, which is imported when it is used.

A new instrument is a row of `CORE`; a new measure of layer pairs is a row that names its
`LayerMeasure`, and says with `through` which instrument compares by it. A test imports every class
that a row names.
Other packages have such rows as entry points, see `thinkalike.catalogue`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter

from thinkalike.errors import PluginError, ThinkalikeError, one_line
from thinkalike.former_columns import FormerColumns


@dataclass(frozen=True)
class ObjectReference:
    """Names an object of a module, which is imported when it is first used.

    Attributes:
        module, name: The module, and the object in it, such as Mine or Outer.Mine.
        origin: What a message calls the entry point of an installed package that names the object,
            such as "measure.mine of the package mine"; "" for an object of this package.
        package: The installed package of the entry point.
        base: The class that the object is a subclass of; None where that is not checked.
        refusal: Why the object is not loaded; "" for most.
    """

    module: str
    name: str
    origin: str = field(default="", kw_only=True)
    package: str = field(default="", kw_only=True)
    base: ObjectReference | None = field(default=None, kw_only=True)
    refusal: str = field(default="", kw_only=True)

    def load(self) -> object:
        """Import the module, and return the object.

        Raises:
            PluginError: The object is that of an installed package, and cannot be imported, or is
                not what its entry point declares.
        """
        if self.refusal:
            raise PluginError(self.refusal)
        with self._naming_package():
            value: object = attrgetter(self.name)(import_module(self.module))
        if self.base is not None:
            base = self.base.load()
            assert isinstance(base, type)
            if not (isinstance(value, type) and issubclass(value, base)):
                raise self.refused(f"is {_described(value)}, and no subclass of {base.__name__}")
        return value

    def call(self, *arguments: object) -> object:
        """Import the module, and return what the class or function of this name gives.

        Raises:
            PluginError: As for `load`; or the class or function of an installed package fails.
        """
        function = self.load()
        if self.origin and not callable(function):
            raise self.refused(f"is {_described(function)}, and neither a class nor a function")
        assert callable(function), f"{self.module}.{self.name} is neither a class nor a function"
        with self._naming_package():
            value: object = function(*arguments)
        return value

    def refused(self, problem: str) -> PluginError:
        """Return the error of an entry point that is not what it should be.

        Args:
            problem: What is wrong; the sentence goes on from the name of the entry point.
        """
        return PluginError(
            f"the entry point {self.origin} {problem}; repair that package, or uninstall it: "
            f"pip uninstall {self.package}"
        )

    @contextlib.contextmanager
    def _naming_package(self) -> Iterator[None]:
        """Name the installed package whose code raises an error within the context.

        An error that says in one line what is wrong passes, and so does a lack of memory, which is
        no fault of the code.
        """
        try:
            yield
        except (ThinkalikeError, MemoryError):
            raise
        except (Exception, SystemExit) as error:  # a script that is imported may end the process
            if not self.origin:
                raise
            reason = f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
            raise self.refused(f"cannot be loaded: {reason}") from error


def _described(value: object) -> str:
    """Return what an object is, such as "the class Mine" or "a module"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of the type {type(value).__name__}"


@dataclass(frozen=True)
class KindEntry(ObjectReference):
    """An instrument, or a measure of layer pairs.

    Attributes:
        kind: Its name on the command line.
        title: What tables, figures and pages call its results; by default its name.
        through: The instrument that compares layers by it, if it is a `LayerMeasure`.
    """

    kind: str
    title: str = ""
    through: ObjectReference | None = None


@dataclass(frozen=True)
class Registered:
    """What one package adds to the command line.

    Attributes:
        tasks, measures: The choices of `task=` and `measure=`.
        subjects: The instruments that replace measures for the recordings of several subjects.
        settings: By part and name, such as model.mine: a subclass of the schema of a part that
            adds settings to it.
        conf: By name the path of a folder of configuration groups.
        experiment: A function from the name of an experiment to its instrument.
        former_columns: By the kind of a result, how earlier versions named its tables, columns and
            numbers.
    """

    tasks: tuple[KindEntry, ...] = ()
    measures: tuple[KindEntry, ...] = ()
    subjects: tuple[KindEntry, ...] = ()
    settings: Mapping[str, ObjectReference] = field(default_factory=dict)
    conf: Mapping[str, ObjectReference] = field(default_factory=dict)
    experiment: ObjectReference | None = None
    former_columns: Mapping[str, FormerColumns] = field(default_factory=dict)


OF_STATES = ObjectReference("thinkalike.instruments.layer_pairs.by_measure", "StatesByMeasure")
OF_OUTPUTS = ObjectReference("thinkalike.instruments.layer_pairs.outputs", "OutputsByMeasure")
# the classes that entry points of installed packages name
INSTRUMENT = ObjectReference("thinkalike.job", "Instrument")
LAYER_MEASURE = ObjectReference("thinkalike.measures", "LayerMeasure")
# makes an instrument of FILE.py:NAME
OF_USER = ObjectReference("thinkalike.instruments.layer_pairs.of_user", "user_instrument")


def _by_states(module: str, name: str, kind: str, title: str) -> KindEntry:
    """Return the row of a `LayerMeasure` of `thinkalike.measures` that compares states."""
    return KindEntry(f"thinkalike.measures.{module}", name, kind, title, through=OF_STATES)


def _by_outputs(name: str, kind: str, title: str) -> KindEntry:
    """Return the row of a `LayerMeasure` of `thinkalike.measures` that compares outputs."""
    return KindEntry("thinkalike.measures.outputs", name, kind, title, through=OF_OUTPUTS)


def _instrument(module: str, name: str, kind: str, title: str = "") -> KindEntry:
    """Return the row of an instrument of `thinkalike.instruments`."""
    return KindEntry(f"thinkalike.instruments.{module}", name, kind, title)


# ---- what earlier versions called tables, columns and numbers, see `thinkalike.former_columns`

OF_TEXT: FormerColumns = {"effective_sample_size": "effective_documents"}
OF_RULER: FormerColumns = {
    "value_forward": "there",
    "value_backward": "back",
    "above_local_mixing": "beyond",
    "source_local_mixing": "source_mixing",
    "target_local_mixing": "target_mixing",
    "source_random_control": "source_untrained",
    "target_random_control": "target_untrained",
    "source_equivalent_bits": "source_bits",
    "target_equivalent_bits": "target_bits",
    "calibration_points.csv": "rungs.csv",
    "calibration_point": "rung",
}


def _of_layer_pairs(kind: str) -> FormerColumns:
    """Return the former names of a measure of layer pairs."""
    return {
        **OF_TEXT,
        **OF_RULER,
        "equivalent_bits.csv": "readings.csv",
        f"lowest_{kind}": f"least_{kind}",
        f"highest_{kind}": f"greatest_{kind}",
        "conditional_on": "given",
        "including_massive_activations": "with_massive",
        "null_mean": "null",
        "p_corrected": "p_of_largest",
        "lowest_p_corrected": "largest_p",
    }


def _former_columns(measures: tuple[KindEntry, ...]) -> dict[str, FormerColumns]:
    """Return the former names of the core, by the kind of a result.

    Args:
        measures: The measures of the core.
    """
    of_layer_pairs = ["cka", "r2", "distance"]
    of_layer_pairs += [entry.kind for entry in measures if entry.through is not None]
    by_kind = {kind: _of_layer_pairs(kind) for kind in of_layer_pairs}
    by_kind["r2"] = {**by_kind["r2"], "r2_forward": "plain", "r2_backward": "plain_back"}
    by_kind["stitching"] = {
        **OF_TEXT,
        "equivalent_bits": "reading",
        "upper_bound_of_gain": "left_to_gain",
        "residual_r2": "similarity",
        "residual_r2_forward": "similarity_there",
        "residual_r2_backward": "similarity_back",
        "above_local_mixing": "similarity_beyond",
        "local_mixing": "similarity_mixing",
    }
    by_kind["ruler"] = {
        **OF_TEXT,
        **OF_RULER,
        "residual_r2": "shared",
        "equivalent_bits_of_source": "bits_of_source",
        "equivalent_bits_of_target": "bits_of_target",
    }
    by_kind["loss"] = OF_TEXT
    by_kind["diff"] = {
        **OF_TEXT,
        "relative_weight_change": "weights",
        "onset": "entering",
        "restoring_effect": "goes",
        "transplanting_effect": "comes",
        "table.mean_effect": "share",
        "outputs.mean_effect": "share",
        "directions.share_of_change": "share",
        "table.weight_change_beyond_control": "beyond",
        "words.change_beyond_null": "beyond",
        "tokens.null_mean": "null",
        "modules": "parts",
        "p_of_farthest_module": "part_p",
        "kl_of_compared_tokens": "kl_of_part",
        "compared_tokens": "tokens_of_part",
    }
    by_kind["lineage"] = {
        "source_module": "source_part",
        "target_module": "target_part",
        "similar_units": "alike",
        "lowest_p_corrected": "least_p_corrected",
        "relations.units_in_place": "shared",
        "relations.lowest_p_corrected": "least_p",
    }
    by_kind["mlem"] = {
        "split_half_reference": "reference",
        "split_half_reference_of_words": "reference_of_words",
        "share_of_reference": "share",
        "conditional_on_word": "given_word",
        "including_massive_activations": "with_massive",
        "p_corrected": "p_of_largest",
        "levels.other_level": "other",
    }
    by_kind["rsa"] = {
        "highest_similarity": "greatest_similarity",
        "conditional_on_word": "given_word",
        "including_massive_activations": "with_massive",
        "p_corrected": "p_of_largest",
    }
    by_kind["trajectory"] = {
        **OF_TEXT,
        "similarity.csv": "likeness.csv",
        "similarity.other_step": "other",
        "similarity_to_last": "to_last",
        "similarity_to_previous": "to_previous",
        "similarity_settles": "likeness_settles",
        "features.null_threshold": "null",
    }
    return by_kind


CORE = Registered(
    tasks=(_instrument("stitching.instrument", "Stitching", "stitch"),),
    measures=(  # those of layer pairs in the order of the columns of an atlas
        _instrument("cka", "LayerCKA", "cka", "CKA"),
        _by_states("neighbours", "MutualKNN", "mutual_knn", "mutual nearest neighbours"),
        _by_states("shape", "Procrustes", "procrustes", "angular Procrustes distance"),
        _by_states("singular_vectors", "SVCCA", "svcca", "SVCCA"),
        _by_states("unit_matching", "SoftMatching", "soft_matching", "soft matching"),
        _by_states(
            "distances.of_layers",
            "DistanceCorrelation",
            "distance_correlation",
            "distance correlation",
        ),
        _by_states("distances.of_layers", "TokenRSA", "token_rsa", "RSA of tokens"),
        _by_states("neighbour_sets", "Jaccard", "jaccard", "Jaccard index of neighbours"),
        _by_states("neighbour_sets", "SecondOrderCosine", "second_order_cosine", "second-order cosine"),
        _instrument("r2", "LayerR2", "r2", "residual R²"),
        _by_outputs("JensenShannon", "jsd", "Jensen-Shannon divergence in nats"),
        _by_outputs("Disagreement", "disagreement", "disagreement of the top token"),
        _instrument("ruler.instrument", "RulerInstrument", "ruler", "residual R² of the ruler"),
        _instrument("distance", "Distance", "distance", "relative distance of states"),
        _instrument("loss", "LossInstrument", "loss"),
        _instrument("diff.instrument", "DiffInstrument", "diff"),
        _instrument("lineage.instrument", "LineageInstrument", "lineage"),
        _instrument("mlem.instrument", "FeatureProfiles", "mlem", "MLEM"),
        _instrument("rsa.instrument", "RSA", "rsa", "RSA"),
        _instrument("trajectory.instrument", "TrajectoryInstrument", "trajectory"),
    ),
)
CORE = replace(CORE, former_columns=_former_columns(CORE.measures))
# comes with the package; its folder may be deleted
STUDIES = ObjectReference("thinkalike.contrib.registry", "STUDIES")


def studies() -> Registered:
    """Return what the studies that come with the package add; nothing if they were deleted."""
    folder = STUDIES.module.rpartition(".")[0]
    if find_spec(folder) is None:
        return Registered()
    of_studies = STUDIES.load()
    assert isinstance(of_studies, Registered)
    return of_studies


def layer_measures(*through: ObjectReference) -> list[KindEntry]:
    """Return the entries of the core that name a `LayerMeasure`.

    Args:
        through: The instruments that compare by them; by default those of states and of outputs.
    """
    instruments = through or (OF_STATES, OF_OUTPUTS)
    return [entry for entry in CORE.measures if entry.through in instruments]
