"""The map φ between two residual streams (Brown et al. 2023, section 2: g after φ after f)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

KINDS = ("identity", "linear", "affine")
NORMS = ("none", "pre", "post")


class Stitch(nn.Module):
    """φ(h) = h + W h (linear) or h + W h + b (affine), from width d to width e.

    Written as a departure from the identity, W = b = 0 at the start, so that weight decay pulls to the identity (after
    tuned-lens). Where the widths differ there is no identity: φ(h) = W h (+ b) with W orthogonal at the start.
    `norm` puts a LayerNorm before or after the map; the paper has one, but not where. With it φ cannot be the identity.

    Raises:
        ValueError: an unknown kind or norm, an identity between different widths, or an identity with a LayerNorm.
    """

    def __init__(self, kind: str, width_in: int, width_out: int, norm: str = "none", seed: int = 0):
        super().__init__()
        if kind not in KINDS or norm not in NORMS:
            raise ValueError(f"kind={kind}, norm={norm}: kinds are {', '.join(KINDS)}; norms are {', '.join(NORMS)}")
        if kind == "identity" and (width_in != width_out or norm != "none"):
            raise ValueError(f"an identity needs equal widths and norm=none, not {width_in}, {width_out}, {norm}")
        self.residual = width_in == width_out
        self.pre = nn.LayerNorm(width_in) if norm == "pre" else nn.Identity()
        self.post = nn.LayerNorm(width_out) if norm == "post" else nn.Identity()
        self.map = None if kind == "identity" else nn.Linear(width_in, width_out, bias=kind == "affine")
        if self.map is not None:
            self._start(self.map, seed)

    def _start(self, linear: nn.Linear, seed: int) -> None:
        with torch.no_grad():
            linear.weight.zero_()
            if not self.residual:
                nn.init.orthogonal_(linear.weight, generator=torch.Generator().manual_seed(seed))
            if linear.bias is not None:
                linear.bias.zero_()

    def forward(self, residual: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        state = self.pre(residual)
        if self.map is not None:
            state = state + self.map(state) if self.residual else self.map(state)
        return self.post(state)
