"""Stitches as objects: the maps of a finished result, or of a folder or the hub, to call, compose, invert and share."""

from thinkalike.stitches.results import Stitches, load_stitch
from thinkalike.stitches.site import Site
from thinkalike.stitches.stitch_map import StitchMap

__all__ = ["Site", "StitchMap", "Stitches", "load_stitch"]
