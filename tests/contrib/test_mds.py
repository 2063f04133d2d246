"""Multidimensional scaling is as good as that of scikit-learn, and always the same."""

import pytest
import torch
from sklearn.manifold import smacof

from drawn_states import drawn
from thinkalike.contrib.papers.mds import mds
from thinkalike.measures import rsa


def test_a_matrix_with_a_direction_is_refused():
    with pytest.raises(ValueError):
        mds(torch.tensor([[0.0, 1], [2, 0]]))


def test_the_map_is_as_good_as_scikit_learns_and_always_equal():
    given = 1 - rsa(drawn(10))
    given = (given + given.T).fill_diagonal_(0).clamp(min=0)
    found, stress = mds(given)
    distances = torch.cdist(found, found)
    assert stress == pytest.approx(float((distances - given).square().sum().sqrt() / distances.norm()))
    best = smacof(given.numpy(), n_init=3, eps=1e-12, max_iter=3000, random_state=0, normalized_stress=False)[1]
    raw = float((distances - given).square().sum() / 2)
    assert raw <= best * 1.05
    assert torch.equal(mds(given)[0], found)
    torch.testing.assert_close(found.mean(0), torch.zeros(2, dtype=torch.float64))
    assert (found.gather(0, found.abs().argmax(0, keepdim=True)) > 0).all()
