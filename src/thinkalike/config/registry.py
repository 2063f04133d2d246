"""The one list of instruments: what `task=` and `measure=` can be, and the module that holds each.

Several that are declared in one module are written as module:kind. They are strings because configuration stands below
what it configures; a module is imported when it is needed.
"""

from thinkalike.errors import ConfigError, one_of
from thinkalike.plugins import is_plugin

DECLARED = (
    *("mutual_knn", "procrustes", "svcca", "soft_matching", "distance_correlation"),
    *("token_rsa", "jaccard", "second_order_cosine", "jsd", "disagreement"),
)
TASKS = {
    "stitch": "thinkalike.instruments.stitching.instrument",
    "pretrain": "thinkalike.instruments.pretraining",
    "nli": "thinkalike.instruments.finetuning",
    "sae": "thinkalike.instruments.sae.instrument",
}
MEASURES = {
    "loss": "thinkalike.instruments.loss",
    "cka": "thinkalike.instruments.cka",
    **{kind: f"thinkalike.instruments.layer_pairs.declared:{kind}" for kind in DECLARED},
    "r2": "thinkalike.instruments.r2",
    "distance": "thinkalike.instruments.distance",
    "diff": "thinkalike.instruments.diff.instrument",
    "trajectory": "thinkalike.instruments.trajectory.instrument",
    "mlem": "thinkalike.instruments.mlem",
    "rsa": "thinkalike.instruments.rsa",
    "probes": "thinkalike.instruments.transfer.probes",
    "steering": "thinkalike.instruments.transfer.steering",
    "population": "thinkalike.instruments.population",
    "court": "thinkalike.court.job",
    "atlas": "thinkalike.atlas.job",
}
OF_TASKS = {"stitching": TASKS["stitch"], "pretraining": TASKS["pretrain"], "nli": TASKS["nli"], "sae": TASKS["sae"]}
KINDS = OF_TASKS | MEASURES  # of results
GONE = {  # measures of earlier versions, and what to run instead
    "asymmetry": "run python train.py stitch.both=true, which reports both directions",
    "transfer_maps": "run python train.py stitch=least_squares stitch.both=true, which fits the same maps",
}
PLUGGED = "thinkalike.instruments.layer_pairs.plugged"  # of measures in files of users


def measure_module(kind: str) -> str:
    """Return the module of a kind of measure, which may be FILE.py:NAME.

    Raises:
        ConfigError: there is no such measure.
    """
    if is_plugin(kind):
        return f"{PLUGGED}:{kind}"
    refuse_gone(kind)
    one_of("measure", kind, MEASURES)
    return MEASURES[kind]


def refuse_gone(kind: str) -> None:
    """Raise a ConfigError with what to run instead, if a measure was removed."""
    if kind in GONE:
        raise ConfigError(f"measure={kind} no longer exists; {GONE[kind]}")
