"""Pairs of texts that differ in a feature, and the tokens that the feature should move."""
