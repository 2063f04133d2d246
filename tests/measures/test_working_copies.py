"""The copies of prepared layers that a user's measure is given: their identity, and their values."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from thinkalike.measures import LayerMeasure
from thinkalike.measures.working_copies import WorkingCopy, is_same


def layers(count=4):
    """Layers of such different sizes that an entry of another one shows."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(30, 5, generator=generator) * 10**index for index in range(count)]


class Cached(LayerMeasure):
    """CKA with norms in a cache, by a key of what `prepare` returned."""

    def __init__(self, form, found, key, change):
        vars(self).update(form=form, found=found, key=key, change=change, norms={})

    def prepare(self, layer, name):
        rows = layer.double()
        return self.form(rows - rows.mean(0))

    def norm(self, prepared):
        rows = torch.as_tensor(self.found(prepared))
        return self.norms.setdefault(self.key(prepared), (rows.T @ rows).norm())

    def compare(self, first, second):
        norms = self.norm(first) * self.norm(second)
        value = (torch.as_tensor(self.found(first)).T @ torch.as_tensor(self.found(second))).norm() ** 2 / norms
        self.change(first)
        self.change(second)
        return value


def same(prepared):
    return prepared


def nothing(prepared):
    pass


def to_zero(prepared):
    prepared[...] = 0


KEYS = {
    "id": (same, same, id, nothing),
    "address": (same, same, torch.Tensor.data_ptr, nothing),
    "id of an array": (torch.Tensor.numpy, same, id, nothing),
    "address of an array": (torch.Tensor.numpy, same, lambda x: x.ctypes.data, nothing),
    "id of a tuple": (lambda x: (x, None), lambda x: x[0], id, nothing),
    "id of an object": (lambda x: SimpleNamespace(inner=x), lambda x: x.inner, id, nothing),
    "id, and changed": (same, same, id, to_zero),
    "address, and changed": (same, same, torch.Tensor.data_ptr, to_zero),
    "address of an array, and changed": (torch.Tensor.numpy, same, lambda x: x.ctypes.data, to_zero),
    "address, and resized": (same, same, torch.Tensor.data_ptr, lambda x: x.resize_(2)),
    "address of a tensor in a box that is emptied": (
        lambda x: {"x": x},
        lambda x: x["x"],
        lambda x: x["x"].data_ptr(),
        dict.clear,
    ),
}


@pytest.mark.parametrize("case", KEYS)
def test_a_measure_may_keep_a_cache_by_identity(case):
    rows = layers()
    values = Cached(*KEYS[case]).matrix(rows, rows)
    no_cache = Cached(same, same, lambda prepared: object(), nothing).matrix(rows, rows)
    assert torch.equal(values, no_cache)
    assert torch.allclose(values.diagonal(), torch.ones(len(rows), dtype=torch.float64))


def test_what_a_pair_does_not_change_is_not_copied_again():
    original = (torch.tensor([0.0, torch.nan]), {"a": np.array([0.0, np.nan]), "b": [1, "x", None]})
    working = WorkingCopy(original, "mine")
    copy = working.copy
    assert copy is not original
    assert not working.restore()
    assert working.copy is copy
    copy[1]["b"][0] = 2
    assert working.restore()
    assert working.copy[1]["b"] == [1, "x", None]
    assert working.copy[0] is copy[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[0].neg_(),  # -0 equals 0, but has another sign
        lambda x: x[0].numpy().__setitem__(0, 1),
        lambda x: x[1]["a"].__setitem__(0, -0.0),
        lambda x: x[1].update(c=1),
        lambda x: x[1]["b"].reverse(),
        lambda x: next(x[2]),
        lambda x: setattr(x[0], "gram", 1),
        lambda x: x[3].__setitem__(0, None),
        lambda x: x[4].random(),
    ],
)
def test_changes_of_all_kinds_show_and_are_undone(change):
    objects = np.array([torch.zeros(2), "x"], dtype=object)
    array = {"a": np.zeros(2), "b": [1, 2]}
    original = (torch.zeros(3), array, iter([1, 2]), objects, np.random.default_rng(0))
    working = WorkingCopy(original, "mine")
    assert not working.restore(), "control"
    change(working.copy)
    assert not is_same(original, working.copy)
    assert working.restore()
    assert is_same(original, working.copy)
    assert not working.restore()
