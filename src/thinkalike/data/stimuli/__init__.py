"""Stimuli and their features: from the grammar, from tables and parsed sentences; recorded activations of them."""
