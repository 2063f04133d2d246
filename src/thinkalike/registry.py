"""What `task=` and `measure=` can be, and the class of each: nothing is imported before it is used.

A new instrument is a row of `CORE`; a new measure of layer pairs is a row that names its `LayerMeasure`, and says with
`through` which instrument compares by it. A test imports every class that a row names.
Other packages have such rows as entry points, see `thinkalike.plugins`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True)
class Place:
    """Names an object of a module, which is imported when it is first used."""

    module: str
    name: str

    def load(self) -> Any:
        return getattr(import_module(self.module), self.name)


@dataclass(frozen=True)
class Entry(Place):
    """An instrument, or a measure of layer pairs.

    Attributes:
        kind: Its name on the command line.
        title: What tables, figures and pages call its results; by default its name.
        through: The instrument that compares layers by it, if it is a `LayerMeasure`.
    """

    kind: str
    title: str = ""
    through: Place | None = None


@dataclass(frozen=True)
class Registered:
    """What one package adds to the command line.

    Attributes:
        tasks, measures: The choices of `task=` and `measure=`.
        subjects: The instruments that take the place of measures for the recordings of several subjects.
        settings: By part and name, such as model.mine: a subclass of the schema of a part that adds settings to it.
        conf: By name the path of a folder of configuration groups.
        experiment: A function from the name of an experiment to its instrument.
    """

    tasks: tuple[Entry, ...] = ()
    measures: tuple[Entry, ...] = ()
    subjects: tuple[Entry, ...] = ()
    settings: Mapping[str, Place] = field(default_factory=dict)
    conf: Mapping[str, Place] = field(default_factory=dict)
    experiment: Place | None = None


OF_STATES = Place("thinkalike.instruments.layer_pairs.by_measure", "StatesByMeasure")
OF_OUTPUTS = Place("thinkalike.instruments.layer_pairs.outputs", "OutputsByMeasure")
OF_USER = Place("thinkalike.instruments.layer_pairs.of_user", "user_instrument")  # from FILE.py:NAME to an instrument

CORE = Registered(
    tasks=(Entry("thinkalike.instruments.stitching.instrument", "Stitching", "stitch"),),
    measures=(  # those of layer pairs in the order of the columns of an atlas
        Entry("thinkalike.instruments.cka", "LayerCKA", "cka", "CKA"),
        Entry("thinkalike.measures.neighbours", "MutualKNN", "mutual_knn", "mutual nearest neighbours", OF_STATES),
        Entry("thinkalike.measures.shape", "Procrustes", "procrustes", "angular Procrustes distance", OF_STATES),
        Entry("thinkalike.measures.singular_vectors", "SVCCA", "svcca", "SVCCA", OF_STATES),
        Entry("thinkalike.measures.unit_matching", "SoftMatching", "soft_matching", "soft matching", OF_STATES),
        Entry(
            "thinkalike.measures.distances.of_layers",
            "DistanceCorrelation",
            "distance_correlation",
            "distance correlation",
            OF_STATES,
        ),
        Entry("thinkalike.measures.distances.of_layers", "TokenRSA", "token_rsa", "RSA of tokens", OF_STATES),
        Entry("thinkalike.measures.neighbour_sets", "Jaccard", "jaccard", "Jaccard index of neighbours", OF_STATES),
        Entry(
            "thinkalike.measures.neighbour_sets",
            "SecondOrderCosine",
            "second_order_cosine",
            "second-order cosine",
            OF_STATES,
        ),
        Entry("thinkalike.instruments.r2", "LayerR2", "r2", "residual R²"),
        Entry("thinkalike.measures.outputs", "JensenShannon", "jsd", "Jensen-Shannon divergence in nats", OF_OUTPUTS),
        Entry(
            "thinkalike.measures.outputs", "Disagreement", "disagreement", "disagreement of the top token", OF_OUTPUTS
        ),
        Entry("thinkalike.instruments.ruler.instrument", "Ruler", "ruler"),
        Entry("thinkalike.instruments.distance", "Distance", "distance", "relative distance of states"),
        Entry("thinkalike.instruments.loss", "Loss", "loss"),
        Entry("thinkalike.instruments.diff.instrument", "Diff", "diff"),
        Entry("thinkalike.instruments.lineage.instrument", "Lineage", "lineage"),
        Entry("thinkalike.instruments.mlem.instrument", "FeatureProfiles", "mlem", "MLEM"),
        Entry("thinkalike.instruments.rsa.instrument", "RSA", "rsa", "RSA"),
        Entry("thinkalike.instruments.trajectory.instrument", "Trajectory", "trajectory"),
    ),
)
STUDIES = Place("thinkalike.contrib.registry", "STUDIES")  # come with the package, and may be deleted


def studies() -> Registered:
    """Return what the studies that come with the package add; nothing where that folder was deleted."""
    folder = STUDIES.module.rpartition(".")[0]
    if find_spec(folder) is None:
        return Registered()
    return STUDIES.load()  # type: ignore[no-any-return]


def layer_measures(*through: Place) -> list[Entry]:
    """Return the entries of the core that name a `LayerMeasure`; by default those of states and of outputs."""
    return [entry for entry in CORE.measures if entry.through in (through or (OF_STATES, OF_OUTPUTS))]
