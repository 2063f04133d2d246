"""Distances between the states of stimuli, and their rank correlations: RSA, and likeness of importance profiles."""
