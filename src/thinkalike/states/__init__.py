"""Activations of models, or recordings of users, at the same tokens, words or stimuli."""
