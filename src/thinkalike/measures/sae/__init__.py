"""Sparse autoencoders: states as sparse sums of directions, and how those are carried from one model to another."""
