"""Rows of states: chosen by a mask, centred for Gram matrices, without the few that decide a layer, and in groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import tensor_of
from thinkalike.measures.estimates import ROUNDINGS

ROUNDED = 1e-9  # of the largest eigenvalue: directions of positions that the groups decide have less


def rows_of(
    states: Shaped[Tensor, "*b d"],
    flatten: str,
    mask: Shaped[Tensor, " ..."] | None = None,
    places: Int[Tensor, " kept"] | None = None,
) -> Shaped[Tensor, "n e"]:
    """Return the states of a batch of sequences as rows; states that are rows already, (n, d), stay so.

    Args:
        states: (b, t, d), or with more axes than t.
        flatten: "token": every token; "sample": a sequence laid out flat, (b, t d); "mean": the mean of its tokens.
        mask: The tokens that count, of the states' shape without d; "sample" cannot do with several lengths.
        places: `places_of` the mask, for several layers of a batch.
    """
    if mask is not None:
        if mask.shape != states.shape[:-1]:
            raise ValueError(f"a mask of shape {tuple(mask.shape)} does not fit states of shape {tuple(states.shape)}")
        places = places_of(mask) if places is None else places
    if flatten == "token" or states.ndim == 2:
        rows = states.flatten(0, -2)
        return rows if places is None else rows.index_select(0, places)
    if flatten == "sample":
        if mask is not None and places is not None and len(places) < mask.numel():
            raise ValueError("flatten=sample takes whole sequences: use flatten=mean where a mask drops tokens")
        return states.flatten(1)
    tokens = states.flatten(1, -2)
    if mask is None:
        return tokens.mean(1)
    kept = mask.flatten(1)
    return tokens.masked_fill(~kept[..., None], 0).sum(1) / kept.sum(1, keepdim=True)


def places_of(mask: Shaped[Tensor, " ..."]) -> Int[Tensor, " kept"]:
    """Return the numbers of the tokens that count; a boolean index would let the host wait for a GPU at every layer."""
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask is boolean, and {mask.dtype} would choose rows by number: use mask.bool()")
    return mask.flatten().nonzero().squeeze(1)


def labels_of_rows(
    labels: Int[Tensor, " ..."], mask: Shaped[Tensor, " ..."] | None, states: Shaped[Tensor, " ..."], name: str
) -> Int[Tensor, " n"]:
    """Return the label, such as its token, of each row that a mask leaves of a batch of states."""
    if labels.shape != states.shape[:-1]:
        raise ValueError(f"{name} of shape {tuple(labels.shape)} do not fit states of shape {tuple(states.shape)}")
    return rows_of(labels.to(states.device)[..., None], "token", mask).squeeze(1)


# ---- rows about their typical point, in units of their typical norm, for Gram matrices in float32

NOT_FINITE, ALIKE = 1, 2


class CentredRows(NamedTuple):
    name: str  # what an error calls them
    rows: Float[Tensor, "n d"]  # (x - shift) / scale
    scale: Float[Tensor, ""]  # root of the mean squared distance from the mean
    leverage: Float[Tensor, ""]
    flaw: Int[Tensor, ""]  # 0: none; NOT_FINITE; ALIKE. See `refuse_flaws`


def leverage(features: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Return the share of the row that is farthest from the mean: maxᵢ kᵢ / Σᵢ kᵢ with kᵢ = ‖xᵢ - μ‖², in [1/n, 1].

    Near 1, one massive token decides what CKA says. A ValueError says that a value is not finite, or all rows the same.

    >>> leverage([[1.0, 0.0], [-1.0, 0.0]]).item()
    0.5
    """
    return centred(features).leverage


def centred(features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Return the rows as `centre` gives them, at least in float32; see `refuse_flaws`."""
    rows = centre(features.to(common_dtype([features])), name)
    refuse_flaws([rows])
    return rows


def centre(features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Shift and scale the rows, differentiably as far as a shift- and scale-invariant measure can tell.

    HSIC forgives any shift, so it is chosen for its digits. Under the plain mean one massive token would leave a large
    offset in every other row; weights 1 / (kᵢ + mean k) leave it out. Rows may be of any size, as they are divided by
    a power of two first. A GPU need not be waited for at every layer, as flaws are looked at later: `refuse_flaws`.
    The rows are copied once, and then changed in place: new memory costs several times as much as a pass over it.
    """
    with torch.no_grad():
        size = size_of(features)
    rows = features / size
    with torch.no_grad():  # constants for a gradient
        mean = rows.mean(0)
        rows.sub_(mean)
        distances = torch.linalg.vector_norm(rows, dim=1).square()
        spread = distances.mean()
        flaw = flaw_of(spread, mean.square().sum(), features.dtype)
        weights = 1 / (distances + spread)
        rows.sub_(weights @ rows / weights.sum())
        scale = spread.sqrt()
    return CentredRows(name, rows.div_(scale), scale.double() * size, distances.max() / distances.sum(), flaw)


@torch.no_grad()
def centre_groups(groups: RowGroups, features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Shift the rows of every group about its typical point, and scale all of them; see `centre`."""
    rows = features[groups.order]
    size = size_of(rows)
    rows /= size
    offset, apart = rows.new_zeros(()), rows.new_empty(len(rows))
    for block, distances in zip(groups.blocks(rows), groups.blocks(apart), strict=True):
        mean = block.mean(1, keepdim=True)
        offset = offset + block.shape[1] * mean.square().sum()
        block -= mean
        distances.copy_(torch.linalg.vector_norm(block, dim=2).square())
    spread = apart.mean()
    flaw = flaw_of(spread, offset / len(rows), features.dtype)
    for block, distances in zip(groups.blocks(rows), groups.blocks(apart), strict=True):
        weights = 1 / (distances + spread)
        block -= weights[:, None] @ block / weights.sum(1)[:, None, None]
    scale = spread.sqrt()
    return CentredRows(name, rows.div_(scale), scale.double() * size, apart.max() / apart.sum(), flaw)


def size_of(features: Float[Tensor, "..."]) -> Float[Tensor, ""]:
    """Return the power of two below the largest absolute value, by which division is exact."""
    least, most = features.aminmax()
    exponent = torch.frexp(torch.maximum(-least, most)).exponent - 1
    return torch.ldexp(features.new_ones(()), exponent)


def flaw_of(spread: Float[Tensor, ""], offset: Float[Tensor, ""], dtype: torch.dtype) -> Int[Tensor, ""]:
    return torch.where(spread.isfinite(), ALIKE * all_alike(spread, offset, dtype), NOT_FINITE)


def refuse_flaws(layers: Sequence[CentredRows], alike: str = "all rows are the same") -> None:
    """Look at all layers at once; a ValueError of the first that is not finite, or the same up to rounding."""
    reasons = {NOT_FINITE: "a value is not finite, or too large", ALIKE: f"{alike}, or differ by too little"}
    for layer, flaw in zip(layers, torch.stack([layer.flaw for layer in layers]).tolist(), strict=True):
        if flaw:
            raise ValueError(f"{layer.name}: {reasons[flaw]} for {layer.rows.dtype}")


# ---- rows with massive states

MASSIVE = 3  # times the median norm of a layer; few states are beyond it, and may carry most variance (Sun et al. 2024)
DECIDES, TIMES = 0.25, 10  # of the variance, and times their share of the rows, beyond which such rows decide a layer
ALONE = 0.9  # of the variance, beyond which rows that begin their text decide a layer, however many there are


def massive(
    layers: Sequence[Float[Tensor, "n _"]], begins: Bool[Tensor, " n"] | None = None
) -> Bool[Tensor, " n"] | None:
    """Return which rows are among the few that decide what is found of some layer; None: no row is.

    These are the rows whose norm is more than `MASSIVE` times the median of the layer, where they carry more than
    `DECIDES` of its variance about the mean of all others, and more than `TIMES` their share of the rows.

    Rows that begin their text, each of which attention may rest on, are judged by themselves, and are left out where
    they carry more than `ALONE` of the variance, although they may be many.
    """
    found = torch.zeros(len(layers[0]), dtype=torch.bool)
    for layer in layers:
        norms = torch.linalg.vector_norm(layer, dim=1)
        long = norms > MASSIVE * norms.median()
        if not long.any():
            continue
        first = torch.zeros_like(long) if begins is None else long & begins.to(long.device)
        apart = (layer.float() - layer[~long].float().mean(0)).square().sum(1)
        for outliers, enough in ((first, ALONE), (long & ~first, 1.0)):
            chosen = outliers | ~long
            share, carried = outliers.sum() / chosen.sum(), apart[outliers].sum() / apart[chosen].sum()
            if carried > min(max(DECIDES, TIMES * float(share)), enough):
                found |= outliers.cpu()
    return found if found.any() else None


# ---- groups of rows, such as those of one token: within them all that the token alone decides is constant


def common_dtype(features: Iterable[Tensor]) -> torch.dtype:
    """Return the widest dtype, and at least float32."""
    return reduce(torch.promote_types, (x.dtype for x in features), torch.float32)


def all_alike(spread: Float[Tensor, "*b"], offset: Float[Tensor, "*b"], dtype: torch.dtype) -> Bool[Tensor, "*b"]:
    """Return whether squared distances from the mean are what rounding leaves of the squared offset of that mean."""
    return spread <= (ROUNDINGS * torch.finfo(dtype).eps) ** 2 * offset


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which rows of a batch belong together."""

    order: Int[Tensor, " kept"]  # the rows that are in a group, those of one side by side, the smallest groups first
    shapes: Sequence[tuple[int, int]]  # the number of groups of each size, and this size
    rows: int  # how many rows the batch has, those without a group included

    @classmethod
    def of(cls, tokens: Int[Tensor, " n"] | Any, fewest: int) -> RowGroups:
        """Group rows by their token; one of fewer than `fewest` rows makes no group, and a ValueError if all do so."""
        if not isinstance(tokens, Tensor):
            tokens = tensor_of(tokens, Int, "tokens")
        _, labels, counts = tokens.unique(return_inverse=True, return_counts=True)
        sizes, numbers = counts[counts >= fewest].unique(return_counts=True)
        if not len(sizes):
            found = f"no token stands in {fewest} of the {len(tokens)} rows, so nothing can be compared given the token"
            raise ValueError(f"{found}: give more rows at once, as by measure.tokens_per_batch")
        kept = int((sizes * numbers).sum())
        order = (counts[labels] * len(counts) + labels).argsort(stable=True)[len(tokens) - kept :]
        return cls(order, list(zip(numbers.tolist(), sizes.tolist(), strict=True)), len(tokens))

    @classmethod
    def whole(cls, n: int, device: torch.device) -> RowGroups:
        return cls(torch.arange(n, device=device), [(1, n)], n)

    def blocks(self, rows: Shaped[Tensor, " kept *d"]) -> Iterator[Shaped[Tensor, "g s *d"]]:
        """Yield views of rows that stand in `order`: for each size s, its g groups."""
        start = 0
        for count, size in self.shapes:
            yield rows[start : start + count * size].unflatten(0, (count, size))
            start += count * size

    def without_means(
        self, rows: Float[Tensor, "n d"], positions: Int[Tensor, " n"] | None = None, dtype: torch.dtype = torch.float64
    ) -> Float[Tensor, "kept d"]:
        """Return the rows in `order`, in this dtype, less the mean of their group, and of their position if given.

        With positions these are the residuals of least squares on both: what the groups leave of the positions'
        indicators is taken out of what they leave of the rows. What is left of a row may be nothing but rounding, as
        where the token decides the state; then it is set to 0.
        """
        whole = rows[self.order].to(dtype)
        kept = self._centre(whole.clone())
        if positions is not None:
            _, places = positions[self.order].unique(return_inverse=True)
            sums = kept.new_zeros(int(places.max()) + 1, kept.shape[1]).index_add_(0, places, kept)
            effects = self._inverse_of_positions(places) @ sums.double()
            kept = self._centre(kept.sub_(effects.to(dtype)[places]))
        apart, offset = (each.square().sum(1, keepdim=True) for each in (kept, whole - kept))
        narrow = common_dtype([rows]) if positions is None else torch.float32  # the last digits are still on their way
        return kept.masked_fill_(all_alike(apart, offset, narrow), 0)

    def _inverse_of_positions(self, places: Int[Tensor, " kept"]) -> Float[Tensor, "p p"]:
        """Return the pseudo-inverse of the products of positions' indicators less the means of their groups."""
        sizes = torch.tensor([size for count, size in self.shapes for _ in range(count)], device=places.device)
        groups = torch.arange(len(sizes), device=places.device).repeat_interleave(sizes)
        counts = torch.zeros(len(sizes), int(places.max()) + 1, dtype=torch.float64, device=places.device)
        counts.index_put_((groups, places), counts.new_ones(()), accumulate=True)
        products = counts.sum(0).diag() - counts.T @ (counts / sizes[:, None])
        return torch.linalg.pinv(products, rtol=ROUNDED, hermitian=True)

    def _centre(self, kept: Float[Tensor, "kept d"]) -> Float[Tensor, "kept d"]:
        for block in self.blocks(kept):
            block -= block.mean(1, keepdim=True)
        return kept
