"""The figures of contrib, and by the same names those of the core; each is loaded when it is first used."""

from importlib import import_module
from typing import Any

from thinkalike import figures

_NAMES = {
    "overview": ("agreement", "court", "doses", "ranks"),
    "papers": ("Contrast", "correlation", "distances", "groups_by_depth", "learning_curves", "scatter"),
    "subjects": ("subject_scores",),
    "trajectories": ("settling", "trajectory"),
    "transfer": ("carried_probes", "sae_curves", "sae_transfers", "steering"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return getattr(figures, name)
