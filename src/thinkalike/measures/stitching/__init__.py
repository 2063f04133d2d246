"""Stitching: maps between residual streams, trained or in closed form, and the losses that judge them."""
