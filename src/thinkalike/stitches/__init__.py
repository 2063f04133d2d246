"""Stitches as objects: the maps of a finished result, or of a folder or the hub, to call, compose, invert and share."""

from thinkalike.stitches.files import write_stitches
from thinkalike.stitches.modules import stitch_modules
from thinkalike.stitches.results import Stitches, load_stitch
from thinkalike.stitches.site import Site
from thinkalike.stitches.stitch_map import StitchMap
from thinkalike.stitches.stitched import StitchedModel

__all__ = ["Site", "StitchMap", "StitchedModel", "Stitches", "load_stitch", "stitch_modules", "write_stitches"]
