"""A stitch as files: the same bits from a folder and from the hub, and nothing that was not wholly read."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

import hub
from thinkalike.errors import StitchError
from thinkalike.stitches.stitch_map import Site, StitchMap


@pytest.fixture
def stitch():
    sites = [Site(name, "main", layer, 2 * f"{name}1234567", "float32") for name, layer in (("a", 1), ("b", 2))]
    return StitchMap(torch.randn(9, 6), torch.randn(9), *sites)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


def same(found, wanted):
    assert found.weight.numpy().tobytes() == wanted.weight.numpy().tobytes()
    assert found.bias.numpy().tobytes() == wanted.bias.numpy().tobytes()
    assert (found.source, found.target) == (wanted.source, wanted.target)


def test_a_folder_and_the_hub_give_the_same_bits(stitch, served, root):
    stitch.save(root / "someone" / "a-to-b")
    same(StitchMap.load(root / "someone" / "a-to-b"), stitch)
    same(StitchMap.from_pretrained(str(root / "someone" / "a-to-b")), stitch)
    served()
    same(StitchMap.from_pretrained("someone/a-to-b"), stitch)
    same(StitchMap.from_pretrained("someone/a-to-b", revision=hub.COMMIT), stitch)


def test_saving_again_replaces_all_that_was_there(stitch, tmp_path):
    stitch.save(tmp_path)
    with pytest.warns(UserWarning, match="condition number"):
        back = stitch.inverse()
    back.save(tmp_path)
    same(StitchMap.load(tmp_path), back)
    card = (tmp_path / "README.md").read_text()
    assert "# A stitch from b:2 to a:1" in card
    assert f"| source | b | main | 2 | 9 | float32 | `{stitch.target.fingerprint}` |" in card
    assert f"| target | a | main | 1 | 6 | float32 | `{stitch.source.fingerprint}` |" in card


def rewritten(name, **changes):
    def change(folder):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**config, **changes}))

    return change


def with_weights(**tensors):
    return lambda folder: save_file(tensors, folder / "model.safetensors")


SITE = {"model": "a", "revision": "r", "layer": 1, "fingerprint": "0", "dtype": "float32"}
NO_STITCH = {
    "no config.json": lambda folder: (folder / "config.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "a damaged config.json": lambda folder: (folder / "config.json").write_text("{"),
    "another format": lambda folder: (folder / "config.json").write_text("{}"),
    "another version": rewritten("config.json", version=2),
    "half a site": rewritten("config.json", source={"model": "a"}),
    "no bias": with_weights(weight=torch.ones(9, 6)),
    "more than a map": with_weights(weight=torch.ones(9, 6), bias=torch.ones(9), scale=torch.ones(1)),
    "another shape": with_weights(weight=torch.ones(9, 6), bias=torch.ones(6)),
    "an infinite bias": with_weights(weight=torch.ones(9, 6), bias=torch.full((9,), torch.inf)),
    "whole numbers": with_weights(weight=torch.ones(9, 6, dtype=torch.long), bias=torch.ones(9)),
    "nothing": with_weights(weight=torch.ones(0, 6), bias=torch.ones(0)),
    "a layer that is text": rewritten("config.json", source={**SITE, "layer": "1"}),
    "a layer that is true": rewritten("config.json", target={**SITE, "layer": True}),
    "a pipe": lambda folder: ((folder / "config.json").unlink(), os.mkfifo(folder / "config.json")),
    "cut weights": lambda folder: os.truncate(folder / "model.safetensors", 200),
}


@pytest.mark.parametrize("case", NO_STITCH)
def test_a_folder_that_is_no_stitch_is_refused(stitch, tmp_path, case):
    stitch.save(tmp_path)
    NO_STITCH[case](tmp_path)
    with pytest.raises(StitchError, match=r"\A.*\Z"):  # one line
        StitchMap.load(tmp_path)


def test_a_repository_without_its_weights_is_refused(stitch, root, served):
    stitch.save(root / "someone" / "s")
    (root / "someone" / "s" / "model.safetensors").unlink()
    served()
    with pytest.raises(StitchError, match=r"model\.safetensors"):
        StitchMap.from_pretrained("someone/s")
