"""The figures of contrib, and by the same names those of the core; each is loaded when it is first used."""

from importlib import import_module
from typing import Any

from thinkalike import figures

_NAMES = {
    "overview": ("agreement", "court", "doses", "ranks", "subject_scores"),
    "papers": ("Contrast", "correlation", "directions", "distances", "groups_by_depth", "learning_curves", "scatter"),
    "trajectories": ("settling", "trajectory"),
    "transfer": ("carried_probes", "sae_curves", "steering"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    return getattr(import_module(f"{__name__}.{_HOME[name]}") if name in _HOME else figures, name)
