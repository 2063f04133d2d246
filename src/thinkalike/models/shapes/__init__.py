"""Shapes of models without their weights: layers, width, parameters and operations, from sizes alone."""
