"""CKA over all rows of a data set at once, in one pass: sums of products of features, whatever the number of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import Array, takes_arrays
from thinkalike.measures.kernels.centring import all_alike
from thinkalike.measures.kernels.hsic import cancels, enough_rows, unbiased_from_sums
from thinkalike.measures.kernels.kernel_alignment import alignment, layer_names


class FeatureSpaceCKA:
    """Unbiased linear CKA between all layers of a source and of a target over every row seen, exact for any chunking.

    With centred X, Y and kᵢ = ‖xᵢ‖², lᵢ = ‖yᵢ‖²: Σ_{i≠j} Kᵢⱼ Lᵢⱼ = ‖X'Y‖² - k·l, and row i of K̃ sums to -kᵢ. All that
    stands in Z'W, where Z = [X, 1, k] and W = [Y, 1, l]. A shift of the rows is a linear map of Z, so the sums may be
    gathered about the first chunk's mean, in float64, and brought to the true mean in the end.

    It takes d e numbers per layer pair, 0.9 GB for 13 x 13 layers of width 768, and is cheaper than Gram matrices of
    all rows beyond some 10,000 rows. A first chunk that is far from typical costs digits. It can be pickled, for
    `merge`.
    """

    def __init__(self) -> None:
        self.n = 0
        self._shape: tuple[int, list[int]] = (0, [])  # layers of the source; widths of its layers and the target's
        self._shifts: list[Tensor] = []
        self._products: dict[tuple[int, int], Tensor] = {}  # Z'W of each layer with itself, and of source with target

    @takes_arrays
    @torch.no_grad()
    def update(self, sources: Sequence[Float[Array, "_ _"]], targets: Sequence[Float[Array, "_ _"]]) -> None:
        """Add the rows of the same n > 0 stimuli in both models, (n, d_l) and (n, e_m).

        Raises:
            ValueError: Layers differ in n, their number or widths are not those so far, or a value is not finite;
                nothing is added.
        """
        features = [x.double() for x in (*sources, *targets)]  # type: ignore[union-attr]
        for name, x in zip(layer_names(len(sources), len(targets)), features, strict=True):
            if len(x) != len(features[0]):
                raise ValueError(f"{name} has {len(x)} rows, but the first layer has {len(features[0])}")
            if not x.isfinite().all():
                raise ValueError(f"{name}: a value is not finite")
        self._fit((len(sources), [x.shape[1] for x in features]))
        self._shifts = self._shifts or [x.mean(0) for x in features]
        z = [_augmented(x - shift) for x, shift in zip(features, self._shifts, strict=True)]
        self._add(len(z[0]), {(i, j): z[i].T @ z[j] for i, j in self._layer_pairs()})

    @torch.no_grad()
    def merge(self, other: FeatureSpaceCKA) -> None:
        """Add what another accumulator saw, as if its rows had come here; the other one stays as it is.

        Raises:
            ValueError: It has other layers or widths.
        """
        if other.n:
            self._fit(other._shape)
            self._shifts = self._shifts or other._shifts
            shifts = [here - there for here, there in zip(self._shifts, other._shifts, strict=True)]
            self._add(other.n, other._about(shifts))

    def compute(self) -> Float[Tensor, "l m"]:
        """Return the CKA of every layer of the source with every layer of the target.

        Raises:
            ValueError: Fewer than 4 rows came, or a layer has no variance.
        """
        enough_rows(self.n)
        depth, layers = self._shape[0], len(self._shifts)
        names = layer_names(depth, layers - depth)
        means = [self._products[i, i][-2, :-2] / self.n for i in range(layers)]
        hsics = self._shifts[0].new_zeros(layers, layers)
        for (i, j), product in self._about(means).items():
            k_l, totals = product[-1, -1], product[-1, -2] * product[-2, -1]
            terms = self.n, product[:-2, :-2].square().sum() - k_l, k_l, totals
            hsics[i, j] = unbiased_from_sums(*terms)
            offset = self.n * (self._shifts[i] + means[i]).square().sum()
            spread, dtype = product[-1, -2], torch.float64
            if i == j and (all_alike(spread, offset, dtype) or cancels(*terms, dtype)):
                raise ValueError(f"{names[i]}: no variance, or only in one row, which the estimator cannot see")
        return alignment(hsics)[:depth, depth:]

    def _layer_pairs(self) -> list[tuple[int, int]]:
        depth, layers = self._shape[0], len(self._shape[1])
        return [(i, i) for i in range(layers)] + [(i, j) for i in range(depth) for j in range(depth, layers)]

    def _fit(self, shape: tuple[int, list[int]]) -> None:
        if self.n and shape != self._shape:
            raise ValueError(f"layers of the source and widths of all are {shape}, but were {self._shape} so far")
        self._shape = shape

    def _add(self, n: int, products: dict[tuple[int, int], Tensor]) -> None:
        for pair, product in products.items():
            self._products[pair] = self._products[pair] + product if self.n else product
        self.n += n

    def _about(self, shifts: Sequence[Tensor]) -> dict[tuple[int, int], Tensor]:
        """Return the products as they would be of rows shifted further by this much."""
        return {(i, j): _shifted(_shifted(z, shifts[i]).T, shifts[j]).T for (i, j), z in self._products.items()}


def _augmented(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d+2"]:
    """Return [X, 1, k]."""
    return torch.cat([x, x.new_ones(len(x), 1), x.square().sum(1, keepdim=True)], 1)


def _shifted(product: Float[Tensor, "c e"], shift: Float[Tensor, " d"]) -> Float[Tensor, "c e"]:
    """Return Z'W for the rows x - shift in place of x: ‖x - c‖² = ‖x‖² - 2c'x + ‖c‖²."""
    x, one, k = product[:-2], product[-2:-1], product[-1:]
    return torch.cat([x - shift[:, None] * one, one, k - 2 * shift @ x + shift.square().sum() * one])
