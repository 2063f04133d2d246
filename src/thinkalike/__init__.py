"""thinkalike: do two language models compute with the same representations, and if not, what differs?

Importing this does nothing and is quick; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Result": "thinkalike.store",
    "open_result": "thinkalike.store",
    "results": "thinkalike.listing",
    "FrozenModel": "thinkalike.models",
    "load_model": "thinkalike.models",
    "StitchMap": "thinkalike.stitches",
    "load_stitch": "thinkalike.stitches",
    "Stitch": "thinkalike.measures",
    "token_loss": "thinkalike.measures",
    "bootstrap_interval": "thinkalike.measures",
    "CKA": "thinkalike.measures",
    "FeatureSpaceCKA": "thinkalike.measures",
    "cka": "thinkalike.measures",
    "hsic0": "thinkalike.measures",
    "hsic1": "thinkalike.measures",
    "leverage": "thinkalike.measures",
    "MLEM": "thinkalike.measures",
    "DifferentiableMLEM": "thinkalike.measures",
    "mutual_knn": "thinkalike.measures",
    "feature_importance": "thinkalike.measures",
    "rsa": "thinkalike.measures",
    "mantel": "thinkalike.measures",
    "weighted_tau": "thinkalike.measures",
    "mds": "thinkalike.measures",
}

__all__ = list(_HOME)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'thinkalike' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
