"""Checkpoints: where they are, how each kind is read, and the proof that all of their weights came."""
