"""Distances between the states of stimuli, and their rank correlations (RSA)."""
