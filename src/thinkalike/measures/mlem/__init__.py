"""Metric-learning encoding models: which features of the stimuli explain the distances between their states."""
