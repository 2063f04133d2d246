"""Sets of pairs of stimuli: all pairs of some stimuli, or, for the paper's own recipe, some pairs of all stimuli."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances import NeuralDistances
from thinkalike.measures.features import Features
from thinkalike.measures.normal_equations import Term, normal_equations, of_pairs
from thinkalike.measures.ranks import spearman_of_patterns, unit_ranks

CHUNK = 2**22  # pairs, or sums of ranks, that exist at the same time
DENSE = 12  # features up to which all patterns of their differences are counted, met or not


def upper(n: int, device: torch.device | None = None) -> Int[Tensor, " p"]:
    """Flat indices of the pairs i < j in an n x n matrix, in the order of `scipy.spatial.distance.pdist`."""
    rows, columns = torch.triu_indices(n, n, 1, device=device)
    return rows * n + columns


class PairSet:
    """Pairs of stimuli with their neural distances in every layer: what a fit takes sums of, and a score ranks.

    Args:
        layers: distances of the same stimuli.
        index: which rows of the feature table these stimuli are; default: all.
        chosen: flat indices of the pairs, which folds then divide; default: all i < j, and folds divide stimuli.
        targets: the squared distances of the pairs, if they are known.
    """

    def __init__(
        self,
        layers: Sequence[NeuralDistances],
        index: Int[Tensor, " n"] | None = None,
        chosen: Int[Tensor, " p"] | None = None,
        targets: Float[Tensor, "l p"] | None = None,
    ):
        self.layers = layers
        self.index = torch.arange(len(layers[0]), device=layers[0].states.device) if index is None else index
        self.chosen = chosen
        self._targets = targets

    def __len__(self) -> int:
        """Number of stimuli, or of pairs, that folds divide."""
        return len(self.index) if self.chosen is None else len(self.chosen)

    def part(self, units: Int[Tensor, " k"]) -> PairSet:
        """Those of the stimuli, or of the pairs."""
        if self.chosen is not None:
            return PairSet(self.layers, self.index, self.chosen[units], self.targets()[:, units])
        return PairSet([layer.take(units) for layer in self.layers], self.index[units])

    @cached_property
    def pairs(self) -> Int[Tensor, " p"]:
        """Flat indices."""
        return upper(len(self.index), self.index.device) if self.chosen is None else self.chosen

    def targets(self) -> Float[Tensor, "l p"]:
        """Squared neural distances."""
        return torch.stack(list(self._rows()))

    def _rows(self) -> Iterable[Float[Tensor, " p"]]:
        if self._targets is not None:
            return self._targets
        return (layer.squared().flatten()[self.pairs] for layer in self.layers)

    @cached_property
    def ranks(self) -> Float[Tensor, "l p"]:
        """Unit ranks of the distances, computed once.

        Raises:
            ValueError: fewer than three pairs, or all distances of a layer are equal.
        """
        if len(self.pairs) < 3:
            raise ValueError(f"{len(self.pairs)} pairs in a fold are too few to rank: use fewer folds, or more stimuli")
        return unit_ranks(self._rows(), "the distances of layer")

    def differences(self, features: Features) -> list[Tensor]:
        """Δ of the pairs, feature by feature: bool for an indicator, else float64."""
        own = features.take(self.index)
        return [own.difference(feature).flatten()[self.pairs] for feature in range(len(features.scaled))]

    def permuted(
        self, features: Features, differences: Sequence[Tensor], moved: Sequence[int], order: Int[Tensor, " k"]
    ) -> list[Tensor]:
        """The differences after the named features have moved, together, between the stimuli, or between the pairs."""
        if self.chosen is not None:
            return [column[order] if feature in moved else column for feature, column in enumerate(differences)]
        own = features.take(self.index).permuted(moved, order)
        return [
            own.difference(feature).flatten()[self.pairs] if feature in moved else column
            for feature, column in enumerate(differences)
        ]

    def sums(self, features: Features, terms: Sequence[Term], cells: Int[Tensor, " k"]) -> Float[Tensor, "s t u"]:
        """The sums of `normal_equations` of all pairs, and without each of the cells that divide stimuli or pairs."""
        if self.chosen is None:
            return normal_equations(features.take(self.index), self.layers, terms, cells)
        return of_pairs(self.differences(features), self.targets(), terms, cells)

    def score(
        self, variants: Sequence[Sequence[Tensor]], terms: Sequence[Term], weights: Float[Tensor, "*b l r"]
    ) -> Float[Tensor, "v *b l"]:
        """Spearman's ρ of Σ weight · Δ_f Δ_g and the distances, for v sets of differences; NaN if that is constant.

        Indicators leave at most 2^f different Δ: with the number of pairs and the sum of ranks of each, no pairs are
        sorted, whatever the weights.
        """
        patterns = min(2 ** len(variants[0]), len(self.pairs))
        step = max(1, CHUNK // max(len(self.pairs), len(self.ranks) * patterns))
        parts = [self._score(variants[start : start + step], terms, weights) for start in range(0, len(variants), step)]
        return torch.cat(parts)

    def _score(self, variants: Sequence[Sequence[Tensor]], terms: Sequence[Term], weights: Tensor) -> Tensor:
        if any(column.is_floating_point() for column in variants[0]):
            ones, sums = torch.ones_like(self.ranks[:1]), self.ranks[None]
            return torch.cat([spearman_of_patterns(predict(v, terms, weights), ones, sums) for v in variants])
        codes, f = torch.stack([_code(differences) for differences in variants]), len(variants[0])
        met = torch.arange(2 ** min(f, DENSE), device=codes.device)
        if f > DENSE:
            met, codes = codes.unique(return_inverse=True)
        counts = torch.stack([torch.bincount(code, minlength=len(met)) for code in codes])
        sums = self.ranks.new_zeros(len(codes), len(self.ranks), len(met))
        for code, total in zip(codes, sums, strict=True):
            total.index_add_(1, code, self.ranks)
        some = counts.any(0)
        patterns = (met[some] >> torch.arange(f, device=met.device)[:, None] & 1).double()
        return spearman_of_patterns(predict(list(patterns), terms, weights), counts[:, some].double(), sums[..., some])


def _code(differences: Sequence[Tensor]) -> Int[Tensor, " p"]:
    """Bit f says whether feature f differs."""
    code = torch.zeros_like(differences[0], dtype=torch.uint8 if len(differences) <= 8 else torch.int64)
    for column in reversed(differences):
        code = torch.add(column, code, alpha=2)
    return code.long()


def predict(
    differences: Sequence[Tensor], terms: Sequence[Term], weights: Float[Tensor, "*b r"]
) -> Float[Tensor, "*b p"]:
    """Σ weight · Δ_f Δ_g over the terms (f, g), without the intercept; one by one, so that equal Δ give equal bits."""
    total = weights.new_zeros(*weights.shape[:-1], len(differences[0]))
    for index, (f, g) in enumerate(terms[1:]):
        total += weights[..., index, None] * (differences[f] * differences[g])
    return total


def check_scores(scores: Float[Tensor, " l *b"]) -> Float[Tensor, " l *b"]:
    """The scores, if each is a number.

    Raises:
        ValueError: the prediction of a layer is constant.
    """
    if scores.isnan().any():
        layer = int(scores.isnan().nonzero()[0, 0])
        raise ValueError(
            f"the prediction of layer {layer} is constant and has no ranks: no feature explains its distances"
        )
    return scores
