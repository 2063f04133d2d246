"""Metric-learning encoding models: which features explain the distances between states."""
