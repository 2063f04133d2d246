"""Losses of models and stitches on text, and what the current token explains alone."""
