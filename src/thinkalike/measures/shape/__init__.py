"""Measures of shape: how well one cloud of rows can be laid on another, by rotations, subspaces or units."""
