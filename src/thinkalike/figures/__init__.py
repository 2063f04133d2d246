"""Drawing: everything here takes tables of results and writes figures; nothing computes a measure.

Each name is loaded when it is first used, because importing matplotlib takes a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinkalike.figures.layers import calibrated_layer_pairs as calibrated_layer_pairs
    from thinkalike.figures.layers import changes as changes
    from thinkalike.figures.layers import components as components
    from thinkalike.figures.layers import layer_heatmaps as layer_heatmaps
    from thinkalike.figures.layers import layer_pairs as layer_pairs
    from thinkalike.figures.layers import profiles as profiles
    from thinkalike.figures.layers import shifts as shifts
    from thinkalike.figures.layers import similarity as similarity
    from thinkalike.figures.lineage import family as family
    from thinkalike.figures.stitching import penalties as penalties
    from thinkalike.figures.stitching import penalty_map as penalty_map
    from thinkalike.figures.style import COLOURS as COLOURS
    from thinkalike.figures.style import canvas as canvas
    from thinkalike.figures.style import close as close
    from thinkalike.figures.style import heatmap as heatmap
    from thinkalike.figures.style import line as line
    from thinkalike.figures.style import png_of as png_of
    from thinkalike.figures.style import save as save
    from thinkalike.figures.style import shown_figures as shown_figures
    from thinkalike.figures.trajectories import trajectory as trajectory

MODULE_OF_NAME = {
    "changes": "layers",
    "components": "layers",
    "layer_heatmaps": "layers",
    "layer_pairs": "layers",
    "profiles": "layers",
    "calibrated_layer_pairs": "layers",
    "shifts": "layers",
    "similarity": "layers",
    "family": "lineage",
    "penalties": "stitching",
    "penalty_map": "stitching",
    "COLOURS": "style",
    "canvas": "style",
    "close": "style",
    "heatmap": "style",
    "line": "style",
    "png_of": "style",
    "save": "style",
    "shown_figures": "style",
    "trajectory": "trajectories",
}

if not TYPE_CHECKING:  # with this function, a type checker would accept every name

    def __getattr__(name: str) -> object:
        if name not in MODULE_OF_NAME:
            raise AttributeError(f"module 'thinkalike.figures' has no attribute '{name}'")
        return getattr(import_module(f"thinkalike.figures.{MODULE_OF_NAME[name]}"), name)
