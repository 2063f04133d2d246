"""Stitches as objects: the maps of a finished result, or of a folder or the hub."""
