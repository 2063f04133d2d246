"""Measures of all layer pairs of two models.

`instrument.LayerPairs` is what they have in common. Measures that need more than a declaration are
files beside this folder.
"""
