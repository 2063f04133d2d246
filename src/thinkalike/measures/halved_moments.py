"""Moments of both halves of the documents, by which the ridge penalty is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.measures.folds import stimulus_folds
from thinkalike.measures.moments import (
    KeyPair,
    LayerStates,
    Moments,
    PairStatistics,
    distinct_pairs,
)
from thinkalike.measures.ridge_penalty import bases_of, penalty_of


class HalvedMoments:
    """`Moments` of both halves of the documents.

    Args:
        pairs: The layer pairs.
        both: Whether maps are fitted in both directions, see `Moments`.
    """

    def __init__(self, pairs: Iterable[KeyPair], both: bool = True):
        self.pairs = distinct_pairs(pairs)
        self.halves = [Moments(self.pairs, both), Moments(self.pairs, both)]

    def update(
        self, sources: LayerStates, targets: LayerStates, halves: Int[Tensor, " n"]
    ) -> None:
        """Add the states of the same n rows in both models, each row to one of two halves.

        Args:
            sources, targets: The states (n, d) of each layer.
            halves: A number for each row; even numbers are the first half, odd ones the second.
        """
        for remainder, moments_of_half in enumerate(self.halves):  # 0 for even numbers, then 1
            rows = (halves % len(self.halves) == remainder).nonzero()[:, 0]
            moments_of_half.update(_selected_rows(sources, rows), _selected_rows(targets, rows))

    def of(self, pair: KeyPair) -> PairStatistics:
        """Return the means and centred products of a layer pair over the rows of both halves.

        Raises:
            ValueError: A half has fewer than two rows, or the pair is unknown.
        """
        return reduce(PairStatistics.joined, self.statistics_of_halves(pair))

    def statistics_of_halves(self, pair: KeyPair) -> list[PairStatistics]:
        """Return the means and centred products of a layer pair over the rows of each half.

        The first half is that of rows with an even number, see `update`.

        Raises:
            ValueError: A half has fewer than two rows, or the pair is unknown.
        """
        if any(half.n < 2 for half in self.halves):
            raise ValueError(
                "each half of the documents to fit on needs two rows, or give a ridge"
            )
        return [half.of(pair) for half in self.halves]

    def penalty(self, pair: KeyPair, bias: bool = True) -> float:
        """Return the ridge penalty λ with which maps fitted on one half best predict the other.

        Both directions, from either half to the other one, count together. λ is ∞, which gives the
        map 0, if no map predicts better than the mean.

        Args:
            pair: The layer pair.
            bias: Whether the map has a constant b.
        """
        halves = self.statistics_of_halves(pair)
        if not bias:
            halves = [half.about_zero() for half in halves]
        basis, bases_of_halves = bases_of(halves)
        return float(penalty_of(halves, basis, bases_of_halves))


def halves_of(documents: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return for each row whether it is in half 0 or half 1 of the documents.

    All rows of a document are in one half, drawn at random. If a half would then have less than a
    quarter of the rows, because one document has most of them, the halves are the first and the
    second half of all rows instead.

    Args:
        documents: The number of the document of each row.
    """
    n = len(documents)
    halves = torch.zeros(n).long()  # for a single document, which is not balanced
    if len(documents.unique()) > 1:
        halves = stimulus_folds(n, 2, groups=documents)
    rows_in_half_1 = int(halves.sum())
    is_balanced = n / 4 <= rows_in_half_1 <= 3 * n / 4
    if not is_balanced:
        halves = torch.arange(n) * 2 // max(n, 1)  # 0 for the first half of the rows, then 1
    return halves.to(documents.device)


def _selected_rows(states_of_layers: LayerStates, rows: Int[Tensor, " k"]) -> LayerStates:
    """Return only these rows of the states of each layer.

    The result is a mapping if the states come in one, by layer, else a list.

    Args:
        states_of_layers: The states (n, d) of each layer.
        rows: The indices of the rows.
    """
    if isinstance(states_of_layers, Mapping):
        return {
            layer: states[rows.to(states.device)] for layer, states in states_of_layers.items()
        }
    return [states[rows.to(states.device)] for states in states_of_layers]
