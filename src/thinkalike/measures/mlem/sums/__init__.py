"""Sums over all pairs of stimuli, mostly from sums over stimuli."""
