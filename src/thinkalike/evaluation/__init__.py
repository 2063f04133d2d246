"""Losses of models, stitches, classifiers and autoencoders on text, and what the current token explains alone."""
