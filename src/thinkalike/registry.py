"""What `task=` and `measure=` can be, and the class of each, which is imported when it is used.

A new instrument is a row of `CORE`; a new measure of layer pairs is a row that names its
`LayerMeasure`, and says with `through` which instrument compares by it. A test imports every class
that a row names.
Other packages have such rows as entry points, see `thinkalike.catalogue`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec


@dataclass(frozen=True)
class ObjectReference:
    """Names an object of a module, which is imported when it is first used."""

    module: str
    name: str

    def load(self) -> object:
        """Import the module, and return the object."""
        value: object = getattr(import_module(self.module), self.name)
        return value

    def call(self, *arguments: object) -> object:
        """Import the module, and return what the class or function of this name gives."""
        function = self.load()
        assert callable(function), f"{self.module}.{self.name} is neither a class nor a function"
        value: object = function(*arguments)
        return value


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
    """

    tasks: tuple[KindEntry, ...] = ()
    measures: tuple[KindEntry, ...] = ()
    subjects: tuple[KindEntry, ...] = ()
    settings: Mapping[str, ObjectReference] = field(default_factory=dict)
    conf: Mapping[str, ObjectReference] = field(default_factory=dict)
    experiment: ObjectReference | None = None


OF_STATES = ObjectReference("thinkalike.instruments.layer_pairs.by_measure", "StatesByMeasure")
OF_OUTPUTS = ObjectReference("thinkalike.instruments.layer_pairs.outputs", "OutputsByMeasure")
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
        _instrument("ruler.instrument", "Ruler", "ruler"),
        _instrument("distance", "Distance", "distance", "relative distance of states"),
        _instrument("loss", "LossInstrument", "loss"),
        _instrument("diff.instrument", "DiffInstrument", "diff"),
        _instrument("lineage.instrument", "LineageInstrument", "lineage"),
        _instrument("mlem.instrument", "FeatureProfiles", "mlem", "MLEM"),
        _instrument("rsa.instrument", "RSA", "rsa", "RSA"),
        _instrument("trajectory.instrument", "TrajectoryInstrument", "trajectory"),
    ),
)
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
