"""Do two language models compute with the same representations, and if not, what differs?

    stitch(a, b)                   can b use what a computes?
    ruler(a, b)                    how similar are they, in bits of a rounded copy?
    compare(a, b, measure="cka")   how similar are their layers? CKA, mutual_knn, r2, ... or your function
        measure="distance", site=["attn_out", "mlp_out"]   at which component does a changed copy begin to differ?
    mlem(a, stimuli=frame)         which features of words explain the distances in each layer?
    rsa([a, b], stimuli=frame)     how similar are their distances of words?
    diff(base, tuned)              what did a change do?
    lineage(a, b)                  does b derive from a, and which of its blocks?
    trajectory("./run")            how do representations form over checkpoints?
    loss(a)                        how well does it predict held-out text?

Each is `run` of a job, an object such as `Compare(a, b, measure="cka")`.

Models are names, folders, or in memory, as `load_model` and TransformerLens have them; arrays or files of states take
their place where nothing runs. `texts=` takes a list, `stimuli=` a DataFrame with `text`, `word` and features. Each
gives a `Result`: `print(result)` is the screen, `.summary` its sentences, `.table` begins with what matters, and
`.details`, `.arrays`, `.plot()` and `.save(folder)` have the rest. A name is loaded when it is first used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see; test_install.py compares it with what is loaded
    from thinkalike.arguments import takes_arrays
    from thinkalike.functions import compare as compare
    from thinkalike.functions import diff as diff
    from thinkalike.functions import lineage as lineage
    from thinkalike.functions import loss as loss
    from thinkalike.functions import mlem as mlem
    from thinkalike.functions import rsa as rsa
    from thinkalike.functions import ruler as ruler
    from thinkalike.functions import stitch as stitch
    from thinkalike.functions import trajectory as trajectory
    from thinkalike.instruments import plot as plot
    from thinkalike.jobs import Compare as Compare
    from thinkalike.jobs import Diff as Diff
    from thinkalike.jobs import Job as Job
    from thinkalike.jobs import Lineage as Lineage
    from thinkalike.jobs import Loss as Loss
    from thinkalike.jobs import Mlem as Mlem
    from thinkalike.jobs import Rsa as Rsa
    from thinkalike.jobs import Ruler as Ruler
    from thinkalike.jobs import Stitch as Stitch
    from thinkalike.jobs import Trajectory as Trajectory
    from thinkalike.jobs import run as run
    from thinkalike.listing import results as results
    from thinkalike.measures import bootstrap, calibration, centred_rows, hsic, kernel_alignment, losses, neighbours
    from thinkalike.measures.distances import comparators
    from thinkalike.measures.distances import rsa as rsa_measures
    from thinkalike.measures.metric import CKA as CKA
    from thinkalike.measures.mlem import importance
    from thinkalike.measures.mlem.encoding_model import MLEM as MLEM
    from thinkalike.models.frozen import FrozenModel as FrozenModel
    from thinkalike.models.load import load_model as load_model
    from thinkalike.stitches.results import load_stitch as load_stitch
    from thinkalike.stitches.stitch import StitchModule as StitchModule
    from thinkalike.stitches.stitch_map import StitchMap as StitchMap
    from thinkalike.store import Result as Result
    from thinkalike.store import open_result as open_result
    from thinkalike.writing import index_states as index_states
    from thinkalike.writing import write_prompts as write_prompts
    from thinkalike.writing import write_states as write_states

    bootstrap_interval = takes_arrays(bootstrap.bootstrap_interval)
    calibrate = takes_arrays(calibration.calibrate)
    cka = takes_arrays(kernel_alignment.cka)
    feature_importance = takes_arrays(importance.feature_importance)
    hsic0 = takes_arrays(hsic.hsic0)
    hsic1 = takes_arrays(hsic.hsic1)
    leverage = takes_arrays(centred_rows.leverage)
    mantel = takes_arrays(rsa_measures.mantel)
    mutual_knn = takes_arrays(neighbours.mutual_knn)
    token_loss = takes_arrays(losses.token_loss)
    weighted_tau = takes_arrays(comparators.weighted_tau)

    __version__: str

_NAMES = {  # in the order of their documentation
    "functions": ["stitch", "compare", "ruler", "mlem", "rsa", "diff", "lineage", "loss", "trajectory"],
    "jobs": ["run", "Job", "Stitch", "Compare", "Ruler", "Mlem", "Rsa", "Diff", "Lineage", "Loss", "Trajectory"],
    "writing": ["write_states", "write_prompts", "index_states"],
    "store": ["Result", "open_result"],
    "listing": ["results"],
    "instruments": ["plot"],
    "models.frozen": ["FrozenModel"],
    "models.load": ["load_model"],
    "stitches.stitch_map": ["StitchMap"],
    "stitches.results": ["load_stitch"],
    "stitches.stitch": ["StitchModule"],
    "measures": [
        *("token_loss", "bootstrap_interval", "CKA", "cka", "hsic0", "hsic1", "leverage", "MLEM"),
        *("mutual_knn", "feature_importance", "mantel", "weighted_tau", "calibrate"),
    ],
}
_HOME = {name: f"thinkalike.{module}" for module, names in _NAMES.items() for name in names}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:  # a checker is to see a name that is not there

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("thinkalike")
        if name not in _HOME:
            raise AttributeError(f"module 'thinkalike' has no attribute '{name}'")
        home = _HOME[name]
        if home in sys.modules:
            loaded = vars(import_module(home))  # another thread may still be importing it
            if name in loaded:
                return loaded[name]
        from thinkalike.global_state import isolated

        # Libraries that are imported here change the environment and draw random numbers, so that they wait for
        # a job of another thread. What is loaded already does not wait.
        with isolated():
            return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, "__version__"])
