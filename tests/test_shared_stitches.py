"""A stitch as files: the same bits from a folder and from the hub, and nothing that was not wholly read."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

import hub
from thinkalike.errors import StitchError
from thinkalike.stitches import Site, StitchMap


@pytest.fixture
def stitch():
    sites = [Site(name, "main", layer, 2 * f"{name}1234567", "float32") for name, layer in (("a", 1), ("b", 2))]
    return StitchMap(torch.randn(9, 6), torch.randn(9), *sites)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


@pytest.fixture
def writer(monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: hub.WRITER)


def same(found, wanted):
    assert found.weight.numpy().tobytes() == wanted.weight.numpy().tobytes()
    assert found.bias.numpy().tobytes() == wanted.bias.numpy().tobytes()
    assert (found.source, found.target) == (wanted.source, wanted.target)


def line_of(call):
    with pytest.raises(StitchError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_and_the_hub_give_the_same_bits(stitch, served, writer, tmp_path, root):
    stitch.save(tmp_path / "mine")
    same(StitchMap.load(tmp_path / "mine"), stitch)
    same(StitchMap.from_pretrained(str(tmp_path / "mine")), stitch)
    asked = served()
    address = StitchMap.load(tmp_path / "mine").push_to_hub("someone/a-to-b", private=True)
    assert address.endswith(f"/someone/a-to-b/commit/{hub.COMMIT}")
    assert "/someone/a-to-b.git/info/lfs/objects/batch" in asked, "weights go the way of large files"
    names = {"config.json", "model.safetensors", "README.md"}
    assert {path.name for path in (root / "someone" / "a-to-b").iterdir()} == names
    for name in names:
        pushed, saved = (folder / name for folder in (root / "someone" / "a-to-b", tmp_path / "mine"))
        assert pushed.read_bytes() == saved.read_bytes()
    same(StitchMap.from_pretrained("someone/a-to-b"), stitch)
    same(StitchMap.from_pretrained("someone/a-to-b", revision=hub.COMMIT), stitch)


def test_what_is_saved_again_takes_the_place_of_all_that_was_there(stitch, tmp_path):
    stitch.save(tmp_path)
    with pytest.warns(UserWarning, match="condition number"):
        back = stitch.inverse()
    back.save(tmp_path)
    same(StitchMap.load(tmp_path), back)
    card = (tmp_path / "README.md").read_text()
    assert "# A stitch from b:2 to a:1" in card
    assert f"| source | b | main | 2 | 9 | float32 | `{stitch.target.fingerprint}` |" in card
    assert f"| target | a | main | 1 | 6 | float32 | `{stitch.source.fingerprint}` |" in card


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(stitch, tmp_path, served, root, name):
    stitch.save(tmp_path / "s")
    (tmp_path / "s" / name).unlink()
    assert f"s has no {name}; give a folder that StitchMap.save wrote" in line_of(
        lambda: StitchMap.load(tmp_path / "s")
    )
    shutil.copytree(tmp_path / "s", root / "someone" / "s")
    served()
    line = line_of(lambda: StitchMap.from_pretrained("someone/s"))
    assert f"cannot get the stitch someone/s: someone/s has no file {name} at revision" in line


def rewritten(name, **changes):
    def change(folder):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**config, **changes}))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not that of a stitch (Expecting"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json is not that of a stitch (list indices"),
        (lambda folder: (folder / "config.json").write_text("{}"), "config.json is not that of a stitch ('format')"),
        (rewritten("config.json", version=2), "says thinkalike affine stitch, version 2, and this reads"),
        (rewritten("config.json", source={"model": "a"}), "config.json does not say what the stitch is between"),
        (rewritten("config.json", target=None), "config.json does not say what the stitch is between"),
    ],
)
def test_a_configuration_that_is_none_is_refused(stitch, tmp_path, change, words):
    stitch.save(tmp_path)
    change(tmp_path)
    assert words in line_of(lambda: StitchMap.load(tmp_path))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"weight": torch.ones(9, 6)}, "holds weight, and a stitch is a weight and a bias"),
        (
            {"weight": torch.ones(9, 6), "bias": torch.ones(9), "scale": torch.ones(1)},
            "holds bias, scale, weight, and a",
        ),
        ({"weight": torch.ones(9, 6), "bias": torch.ones(6)}, "not (9, 6) and (6,): take its own files"),
        ({"weight": torch.full((9, 6), torch.nan), "bias": torch.ones(9)}, "holds numbers that are not finite"),
    ],
)
def test_weights_that_are_no_stitch_are_refused(stitch, tmp_path, tensors, words):
    stitch.save(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    assert words in line_of(lambda: StitchMap.from_pretrained(tmp_path))


def test_weights_that_break_off_are_refused(stitch, tmp_path, served, root):
    stitch.save(tmp_path / "s")
    path = tmp_path / "s" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    assert "model.safetensors is damaged (" in line_of(lambda: StitchMap.load(tmp_path / "s"))


def test_what_the_hub_does_not_give_or_take_is_one_line(stitch, served, monkeypatch):
    served()
    words = "cannot get the stitch someone/none: there is no repository someone/none on the hub, or it is private"
    assert words in line_of(lambda: StitchMap.from_pretrained("someone/none"))
    assert "cannot get the stitch ./none: HFValidationError" in line_of(lambda: StitchMap.from_pretrained("./none"))
    line = line_of(lambda: stitch.push_to_hub("someone/s"))
    assert line.startswith("cannot push the stitch to someone/s: ")
    assert "401" in line
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: hub.WRITER)
    served({"/commit/": hub.Fault(status=403)})
    assert "403" in line_of(lambda: stitch.push_to_hub("someone/s"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.NOWHERE)
    assert "does not answer" in line_of(lambda: stitch.push_to_hub("someone/s"))
