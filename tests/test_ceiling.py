"""Ceilings: the ρ of the true distances of cells, from noisy stimuli of a few each."""

import pytest
import scipy.stats
import torch

from thinkalike.measures import ceiling
from thinkalike.measures.distances.neural import NeuralDistances, upper

pytestmark = pytest.mark.usefixtures("float64")


def planted(noise, each, cells=40, width=16, seed=0):
    """Stimuli of cells whose centres are known: cells, states, and the ρ that knowing the centres gives."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(cells, width, generator=draw)
    owners = torch.arange(cells).repeat_interleave(each)
    states = centres[owners] + noise * torch.randn(len(owners), width, generator=draw)
    pairs = upper(len(owners))
    best = torch.cdist(centres, centres).square() + 2 * noise**2 * width
    best = best[owners[pairs // len(owners)], owners[pairs % len(owners)]]
    found = torch.cdist(states, states).flatten()[pairs]
    return owners, states, scipy.stats.spearmanr(found, best).statistic


@pytest.mark.parametrize("noise", [0.3, 1.0, 1.5])
@pytest.mark.parametrize("each", [6, 12])
def test_the_ceiling_of_planted_cells_is_what_their_centres_explain(noise, each):
    owners, states, best = planted(noise, each)
    assert float(ceiling(owners.tolist(), [states])) == pytest.approx(best, abs=0.03)


def test_without_its_correction_few_stimuli_would_hide_what_there_is():
    owners, states, best = planted(1.5, 6)
    halves = [torch.arange(0, len(owners), 2), torch.arange(1, len(owners), 2)]
    first, second = (NeuralDistances.of(states).take(half).squared() for half in halves)
    held = torch.nn.functional.one_hot(owners[halves[0]]).double()
    sizes = held.sum(0)
    means = held.T @ first @ held / (sizes[:, None] * sizes - sizes.diag())
    pairs = upper(len(second))
    own = owners[halves[1]]
    plain = scipy.stats.spearmanr(
        second.flatten()[pairs], means[own[pairs // len(own)], own[pairs % len(own)]]
    ).statistic
    assert plain < best - 0.05, "control"


def test_states_without_noise_are_explained_whole():
    owners, states, _ = planted(0.0, 4)
    assert float(ceiling(owners.tolist(), [states])) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("distance", ["cosine", "manhattan", torch.cdist])
def test_any_distance_and_any_names_of_cells(distance):
    owners, states, _ = planted(0.5, 10)
    names = [f"cell {number}" for number in owners.tolist()]
    both = ceiling(names, [states, states.flip(0)], distance)
    assert both.shape == (2,)
    assert 0.7 < float(both[0]) <= 1
    assert abs(float(both[1])) < 1
    torch.testing.assert_close(ceiling(owners.tolist(), [states, states.flip(0)], distance), both)


def test_finer_cells_explain_no_less():
    owners, states, _ = planted(0.5, 12)
    coarse = [number // 2 for number in owners.tolist()]
    assert float(ceiling(owners.tolist(), [states])) > float(ceiling(coarse, [states])) + 0.05


def test_what_a_group_shares_counts_only_where_groups_are_told():
    """Each sentence has a state of its own that all of its words share: no feature knows it."""
    draw = torch.Generator().manual_seed(3)
    sentences = torch.arange(60).repeat_interleave(8)
    states = torch.randn(60, 8, generator=draw)[sentences] + 0.3 * torch.randn(480, 8, generator=draw)
    cells = (sentences // 2).tolist()  # two sentences each
    mixed = float(ceiling(cells, [states]))
    told = float(ceiling([number // 8 for number in range(480)], [states]))
    assert mixed < told
    with pytest.raises(ValueError, match="too few, or all equally far"):
        ceiling(sentences.tolist(), [states], groups=sentences.tolist())


def test_noise_alone_has_no_ceiling():
    states = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="cells have no reliable distances"):
        ceiling([number % 10 for number in range(40)], [states], splits=50)


def test_of_many_stimuli_some_are_drawn(monkeypatch):
    monkeypatch.setattr("thinkalike.measures.mlem.importance.MOST", 200)
    owners, states, best = planted(0.5, 20)
    assert float(ceiling(owners.tolist(), [states])) == pytest.approx(best, abs=0.06)
