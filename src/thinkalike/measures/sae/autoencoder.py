"""Sparse autoencoders of residual states, one or many independent ones in one module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from thinkalike.arguments import seeded


class SparseAutoencoder(nn.Module):
    """z = σ(h W_enc + b_enc), ĥ = z W_dec + b_dec: a state h of width d as a sparse sum of f directions.

    With k, σ keeps the k largest entries, those of them that are positive (TopK; Gao et al. 2024, arXiv 2406.04093);
    without it, all that are positive (ReLU; Bricken et al. 2023). b_dec is not subtracted from h.

    Weights with a leading axis s are as many independent autoencoders. They read the same states (n, d), or each its
    own (s, n, d), and each has the bits that it has alone.

    Attributes:
        W_enc: (d, f).
        b_enc: (f).
        W_dec: (f, d), one direction a row.
        b_dec: (d).
        k: How many latents are active at most; None: a ReLU.

    Raises:
        ValueError: The weights do not fit together, or k is not in 1..f.
    """

    def __init__(self, W_enc: Tensor, b_enc: Tensor, W_dec: Tensor, b_dec: Tensor, k: int | None = None):
        super().__init__()
        *stack, d, f = W_enc.shape
        shapes = [tuple(part.shape) for part in (b_enc, W_dec, b_dec)]
        if shapes != [(*stack, f), (*stack, f, d), (*stack, d)] or len(stack) > 1:
            raise ValueError(f"W_enc {tuple(W_enc.shape)} does not go with b_enc, W_dec and b_dec of {shapes}")
        if k is not None and not 1 <= k <= f:
            raise ValueError(f"k={k} is not in 1..{f}, the number of latents")
        self.k = k
        self.W_enc, self.b_enc = nn.Parameter(W_enc), nn.Parameter(b_enc)
        self.W_dec, self.b_dec = nn.Parameter(W_dec), nn.Parameter(b_dec)

    @classmethod
    def random(cls, d: int, f: int, k: int | None = None, seed: int = 0) -> SparseAutoencoder:
        """Return one with random directions of norm 1 that reads what it writes: W_enc = W_dec', no biases."""
        directions = torch.randn(f, d, generator=seeded(seed))
        W_dec = nn.functional.normalize(directions, dim=-1)
        return cls(W_dec.T.clone(), torch.zeros(f), W_dec, torch.zeros(d), k)

    @classmethod
    def stacked(cls, several: Sequence[SparseAutoencoder]) -> SparseAutoencoder:
        """Return several autoencoders of one shape as one module, with a leading axis.

        Raises:
            ValueError: There is none, or they differ in their shape or in k.
        """
        parts = ("W_enc", "b_enc", "W_dec", "b_dec")
        kinds = {(each.d, each.f, each.k) for each in several}
        if len(kinds) != 1:
            raise ValueError(
                f"autoencoders of one stack have one width, number of latents and k, not {sorted(kinds, key=str)}"
            )
        stacked = {part: torch.stack([getattr(each, part).detach() for each in several]) for part in parts}
        return cls(**stacked, k=several[0].k)

    def unstacked(self) -> list[SparseAutoencoder]:
        """Return each autoencoder of a stack by itself."""
        stack = (part.detach().clone() for part in (self.W_enc, self.b_enc, self.W_dec, self.b_dec))
        return [SparseAutoencoder(E, e, W, w, self.k) for E, e, W, w in zip(*stack, strict=True)]

    @property
    def d(self) -> int:
        """The width of the states."""
        return self.W_enc.shape[-2]

    @property
    def f(self) -> int:
        """The number of latents."""
        return self.W_enc.shape[-1]

    def before(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n f"]:
        """Return what σ is applied to."""
        return states.to(self.W_enc.dtype) @ self.W_enc + self.b_enc.unsqueeze(-2)

    def activate(self, before: Float[Tensor, "*c n f"]) -> Float[Tensor, "*c n f"]:
        """Return σ of what `before` gives."""
        if self.k is None:
            return before.relu()
        values, places = before.topk(self.k, sorted=False)
        return torch.zeros_like(before).scatter(-1, places, values.relu())

    def encode(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n f"]:
        """Return the latents z of each state, at least 0."""
        return self.activate(self.before(states))

    def decode(self, latents: Float[Tensor, "*c n f"]) -> Float[Tensor, "*c n d"]:
        """Return the states ĥ that latents stand for."""
        return latents @ self.W_dec + self.b_dec.unsqueeze(-2)

    def forward(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n d"]:
        """Return ĥ of each state."""
        return self.decode(self.encode(states))

    def extra_repr(self) -> str:
        stack = f"{len(self.W_enc)} of " if self.W_enc.dim() == 3 else ""
        return f"{stack}{self.d} to {self.f}, " + ("ReLU" if self.k is None else f"Top{self.k}")
