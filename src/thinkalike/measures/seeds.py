"""Generators of random numbers from a seed."""

import torch


def seeded(seed: int) -> torch.Generator:
    """Return a generator of random numbers on the CPU; the seed may be a NumPy integer."""
    return torch.Generator().manual_seed(int(seed))
