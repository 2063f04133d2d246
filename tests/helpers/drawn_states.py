"""States that are drawn, of the same sizes in every test."""

import torch

N, D = 40, 12


def drawn(count=3, n=N, d=D, dtype=torch.float64, device="cpu"):
    """Layers that share something."""
    shared = torch.randn(n, d, dtype=torch.float64)
    return [(shared + (k + 1) * torch.randn(n, d, dtype=torch.float64)).to(device, dtype) for k in range(count)]
