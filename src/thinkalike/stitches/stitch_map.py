"""A stitch as a module: one affine map from a site of one model to a site of another."""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor, nn

from thinkalike.errors import StitchError
from thinkalike.measures import AffineMap
from thinkalike.stitches.site import Site


class StitchMap(nn.Module):
    """The map φ(h) = W h + b from the states of one site to those of another, with all that it is made of folded in.

    The weights are float32 and frozen; `requires_grad_()` trains them further.

    Attributes:
        weight: W, (width of the target, width of the source).
        bias: b, (width of the target).
        source, target: The sites that it goes from and to.

    Raises:
        StitchError: Weight and bias do not fit each other, or are not finite.
    """

    def __init__(self, weight: Tensor, bias: Tensor, source: Site, target: Site):
        super().__init__()
        if weight.dim() != 2 or bias.shape != weight.shape[:1]:
            shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise StitchError(f"a stitch has a weight (e, d) and a bias (e), not {shapes}: take its own files")
        if not (weight.isfinite().all() and bias.isfinite().all()):
            raise StitchError(f"the stitch from {source} to {target} holds numbers that are not finite: make it anew")
        self.weight = nn.Parameter(weight.detach().float().contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias.detach().float().contiguous(), requires_grad=False)
        self.source, self.target = source, target

    def forward(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """Return the states of the target's site, in the dtype of those given; see `AffineMap`."""
        return self.affine(states)

    @property
    def affine(self) -> AffineMap:
        """The weight and the bias as a plain map, whose products with others are of tensors alone."""
        return AffineMap(self.weight, self.bias)

    def __matmul__(self, first: StitchMap) -> StitchMap:
        """Return the composition: `(a @ b)(states)` is `a(b(states))`.

        Raises:
            StitchError: `first` does not end where this map begins.
        """
        if not self.source.is_same(first.target):
            raise StitchError(
                f"{self.source} is not {first.target}, so the stitch from the one does not follow that to the other: "
                "compose maps that share a layer of the same weights"
            )
        whole = _wide(self.affine) @ _wide(first.affine)
        return StitchMap(whole.weight, whole.bias, first.source, self.target)

    def inverse(self) -> StitchMap:
        """Return h ↦ W⁺ (h - b) from the target's site to the source's, with the pseudo-inverse W⁺.

        This undoes φ, which is not what leads from the target's own states to the source's: W⁺ multiplies all that
        φ does not explain by as much as the condition number of W, which a warning says. The map back by regression
        is `both_directions(...).psi`, or `load_stitch(result).back`.
        """
        wide = _wide(self.affine)
        singular = torch.linalg.svdvals(wide.weight)
        warnings.warn(
            f"the inverse of a stitch with the condition number {float(singular[0] / singular[-1]):.3g} multiplies "
            "noise by as much; a map back that is fitted does not",
            stacklevel=2,
        )
        back = torch.linalg.pinv(wide.weight)
        return StitchMap(back, -back @ wide.bias, self.target, self.source)

    def extra_repr(self) -> str:
        return f"{self.source} ({self.weight.shape[1]}) → {self.target} ({self.weight.shape[0]})"


def _wide(fit: AffineMap) -> AffineMap:
    return AffineMap(fit.weight.double(), fit.bias.double())
