"""Courses of training that are computed by hand."""

import torch

from thinkalike.contrib.sae.courses import StartCurve

TOKENS = [0, *(125 * 2**place for place in range(8))]


def course(name: str, speed: float, fixed: float = 0.0, start: float = 0.0, seeds: int = 3) -> StartCurve:
    """One that explains start + log2(1 + speed · tokens / 1000) / 10 after so many tokens, a little more each seed."""
    curve = start + torch.log2(1 + speed * torch.tensor(TOKENS) / 1000) / 10
    return StartCurve(name, TOKENS, curve[:, None] + torch.linspace(0, 0.01, seeds), fixed, 2.0)
