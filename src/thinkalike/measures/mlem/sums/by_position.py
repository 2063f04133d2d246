"""The sums of `normal_equations` for scaled features, without any pair of stimuli.

Every regressor, and the squared distance of states, is z_i' C z_j of some columns z of each stimulus. With p = 1 where
a feature has a value x, counted from its mean, and q = 1 where it lacks one that is not ignored (x = 0 there),

| what | z | z_i' C z_j |
|---|---|---|
| Δ² of a scaled feature | p, x, x², q | x_i² p_j + p_i x_j² - 2 x_i x_j + p_i q_j + q_i p_j |
| an indicator | g = 1 unless ignored, h_c = 1[level c] | g_i g_j - Σ_c h_c,i h_c,j |
| the levels a ≠ b | h_a, h_b | h_a,i h_b,j + h_b,i h_a,j |
| a squared distance | 1, ‖v‖², v | ‖v_i‖² + ‖v_j‖² - 2 v_i · v_j |

So a product of two sums to tr(C M C' M') / 2 over the pairs i < j, with M = Σ_i z_i z'_i of the columns of both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.sums.by_level import of_sets
from thinkalike.measures.mlem.terms import Term

FORM = ((0, 0, 1, 1), (0, -2, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0))  # C of p, x, x², q


def is_scaled(features: Features, term: Term) -> bool:
    """Return whether a term is Δ_f² of a scaled feature."""
    return len(term) == 2 and term[0] == term[1] and features.scaled[term[0]]


def add_positions(
    sums: Float[Tensor, "s t u"],
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    cells: Int[Tensor, " n"],
) -> None:
    """Write the rows and columns of scaled features into the table of `normal_equations`."""
    places = [place for place, term in enumerate(terms) if is_scaled(features, term)]
    columns = torch.cat([_columns(features, terms[place][0]) for place in places], 1)
    form = columns.new_tensor(FORM)
    members = [(cells == cell).nonzero()[:, 0] for cell in range(int(cells.max()) + 1)]

    def both(right: Float[Tensor, "n m"]) -> Float[Tensor, "s f 4 m"]:
        found = of_sets(torch.stack([columns[rows].T @ right[rows] for rows in members]))
        return found.view(len(found), len(places), 4, -1)

    alone = both(torch.ones_like(columns[:, :1]))
    sums[:, places, 0] = sums[:, 0, places] = _halved(form @ alone, alone)
    shared = both(columns).view(len(alone), len(places), 4, len(places), 4).movedim(2, 3)
    where = torch.tensor(places)
    sums[:, where[:, None], where] = _halved(form @ shared @ form, shared)
    for place, layer in enumerate(layers, len(terms)):
        ends = both(layer.states.square().sum(1, keepdim=True))
        total = both(layer.states)
        sums[:, places, place] = 2 * _halved(form @ ends, alone) - 2 * _halved(form @ total, total)
    for feature in sorted({term[0] for term in terms[1:] if not is_scaled(features, term)}):
        known = features.known[feature]
        held = _by_level(features.levels[:, feature], known, columns, cells)
        _add_levels(sums, feature, known, held.unflatten(2, (len(places), 4)).movedim(1, 3), places, terms)


def _add_levels(
    sums: Tensor, feature: int, known: int, held: Float[Tensor, "s f 4 c"], places: list[int], terms: Sequence[Term]
) -> None:
    """Write the products of scaled features with an indicator, or with the pairs of the levels of a feature."""
    form = held.new_tensor(FORM)
    if known:
        others = [place for place, term in enumerate(terms) if len(term) == 3 and term[0] == feature][:-1]
        left, right = torch.triu_indices(known, known, 1, device=held.device)
        found = (held.mT @ form @ held)[..., left, right]  # no stimulus has a level beyond the known ones
    else:
        others = [terms.index((feature, feature))]
        present = held.sum(-1, keepdim=True)
        found = (_halved(form @ present, present) - _halved(form @ held, held))[..., None]
    sums[:, torch.tensor(places)[:, None], others] = found
    sums[:, torch.tensor(others)[:, None], places] = found.mT


def _columns(features: Features, feature: int) -> Float[Tensor, "n 4"]:
    place = features.positions[:, feature] / features.ranges[feature]
    there = ~place.isnan()
    x = torch.where(there, place - place.nanmean(), 0)
    lacks = ~there & (features.levels[:, feature] >= 0)
    return torch.stack([there.double(), x, x.square(), lacks.double()], 1)


def _by_level(
    levels: Int[Tensor, " n"], known: int, columns: Float[Tensor, "n m"], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s c m"]:
    """Return the sums of the columns over the stimuli of each level from 0; a negative level is left out."""
    number, size = int(cells.max()) + 1, max(int(levels.max()) + 1, known, 1) + 1
    keys = cells * size + levels.clamp(min=-1) + 1
    found = columns.new_zeros(number * size, columns.shape[1]).index_add_(0, keys, columns)
    return of_sets(found.view(number, size, -1))[:, 1:]


def _halved(left: Float[Tensor, "*b 4 m"], right: Float[Tensor, "*b 4 m"]) -> Float[Tensor, "*b"]:
    return (left * right).sum((-2, -1)) / 2
