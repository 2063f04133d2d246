"""Copies of a model in a folder of states: the ruler gives the values and the bits of the model."""

import gc
import hashlib
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import thinkalike as ta
import tiny
from conftest import with_ci_slow, with_slow
from thinkalike.config import ModelConfig
from thinkalike.errors import DataError, ModelError, ThinkalikeError
from thinkalike.models.load import load_model
from thinkalike.models.rounding import rounded_copy
from thinkalike.shards.index import INDEX, read_index
from thinkalike.states import copies
from thinkalike.states.copies import COPIES, copies_of
from thinkalike.states.folder import StateFolder

TEXTS = [tiny.document(seed, words=120) for seed in range(40)]
RULER = {"measure": "ruler", "words": 2500, "layers": [[1, 1], [3, 3]]}
NARROW = {"d_model": 16, "d_head": 4}  # R² of wider models needs more words
LARGE = 3000  # added to the states of the first token, so that they are massive


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Two similar tiny models, and the folders of states of both on the same text, with copies."""
    root = tmp_path_factory.mktemp("copies")
    tiny.write_mini(root / "a", **NARROW)
    torch.manual_seed(0)
    tiny.write_mini(root / "b", module=tiny.jiggled(tiny.native(**NARROW), 0.01), **NARROW)
    write_both(root)
    return root


def write_both(root: Path) -> None:
    """Write states-a and states-b, the states of two models in a folder, with copies."""
    text: object = TEXTS
    for name in ("a", "b"):
        folder = root / f"states-{name}"
        ta.write_states(root / name, folder, texts=text, words=3000, context=48, copies=True)
        text = root / "states-a"


@pytest.fixture(scope="module")
def of_models(root):
    """The ruler on the two models, and the text of their states."""
    return ta.compare(root / "a", root / "b", texts=root / "states-a", **RULER)


def check_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Check that two tables have the same rows; the names of models and folders may differ."""
    assert list(found.columns) == list(expected.columns)
    assert len(found) == len(expected)
    for column in expected.columns.difference(["source", "target", "model"]):
        if expected[column].dtype.kind == "f":
            np.testing.assert_allclose(found[column], expected[column], rtol=0, atol=1e-6)
        else:
            assert list(found[column]) == list(expected[column])


def check_same_result(found, expected) -> None:
    """Check the layer pairs, the calibration points and the size of the sample of two results."""
    check_same(found.details, expected.details)
    points = "calibration_points"
    check_same(found.tables[points], expected.tables[points])
    assert found.scalars == pytest.approx(expected.scalars, abs=1e-6)


# ---- the same values and bits


@pytest.mark.ci_slow
def test_the_models_are_as_similar_as_copies_of_some_bits(of_models):
    """A control: bits that are no end of the scale show that copies decide them."""
    for side in ("source", "target"):
        assert of_models.details[f"{side}_equivalent_bits"].between(2.05, 7.95).all()
    points = of_models.tables["calibration_points"]
    assert points["bits"].nunique() >= 2


SIDES = [("states-a", "b"), ("a", "states-b"), ("states-a", "states-b")]


@pytest.mark.ci_slow
@pytest.mark.parametrize("sides", SIDES)
def test_the_ruler_on_folders_is_that_on_the_models(root, of_models, sides, caplog):
    settings = dict(RULER)
    if sides[0] == "a":
        settings["texts"] = root / "states-a"
    found = ta.compare(*(root / side for side in sides), **settings)
    check_same_result(found, of_models)
    assert "no weights" not in caplog.text
    assert [model["name"] for model in found.provenance["models"]] == list(sides)


@pytest.mark.slow  # a minute; tiny models show the same above
def test_the_ruler_on_folders_of_trained_models_is_that_on_the_models(tmp_path):
    source, target = "gelu-3l-mini", "solu-3l-mini"
    few = {"layers": [2], "copies": True}
    text = ta.write_states(source, tmp_path / "gelu", words=6800, context=120, **few)
    ta.write_states(target, tmp_path / "solu", texts=text, **few)
    settings = {"measure": "ruler", "words": 6700, "layers": [2]}
    expected = ta.compare(source, target, texts=text, **settings)
    check_same_result(ta.compare(text, tmp_path / "solu", **settings), expected)
    assert expected.details["source_equivalent_bits"].between(2.05, 7.95).all(), "control"


@pytest.mark.ci_slow
def test_a_folder_beside_itself_is_a_model_beside_itself(root):
    found = ta.compare(root / "states-a", root / "states-a", **RULER)
    expected = ta.compare(root / "a", root / "a", texts=root / "states-a", **RULER)
    check_same_result(found, expected)


def with_massive_first_token(model, bits):
    """Return the rounded copy of a model, in which the first token of a row is massive."""
    copy = rounded_copy(model, bits)
    with torch.no_grad():
        copy.module.pos.weight[0] += LARGE
    return copy


@pytest.mark.parametrize("where", with_ci_slow(["copies alone", "the models"], "copies alone"))
def test_words_that_are_massive_are_left_out_of_folders_too(root, tmp_path, monkeypatch, where, caplog):
    for name in ("a", "b"):
        shutil.copytree(root / name, tmp_path / name)
    if where == "copies alone":
        monkeypatch.setattr(copies, "rounded_copy", with_massive_first_token)
    else:
        weights = load_file(tmp_path / "a" / "model.safetensors")
        weights["pos.weight"][0] += LARGE
        save_file(weights, tmp_path / "a" / "model.safetensors")
    write_both(tmp_path)
    expected = ta.compare(tmp_path / "a", tmp_path / "b", texts=tmp_path / "states-a", **RULER)
    assert "with massive activations" in caplog.text
    found = ta.compare(tmp_path / "states-a", tmp_path / "states-b", **RULER)
    check_same_result(found, expected)
    kept = ta.compare(tmp_path / "states-a", tmp_path / "states-b", massive="keep", **RULER)
    difference = (kept.details["value"] - expected.details["value"]).abs()
    assert (difference > 1e-4).any(), "control: leaving them out moves the values"


# ---- what is written


def source_of(folder: Path) -> StateFolder:
    return StateFolder(ModelConfig(name="local", path=str(folder), bos=None, corpus=None))


def test_a_copy_has_the_states_of_the_changed_model(root):
    model = load_model(ModelConfig(name="local", path=str(root / "a"), bos=None, corpus=None))
    folder = source_of(root / "states-a")
    token_ids = torch.from_numpy(folder.rows.token_ids(0))[None]
    of_folder, of_model = copies_of(folder), copies_of(model)
    assert of_folder.parameters == of_model.parameters == model.parameters()
    (states_of_model,) = model.residuals(token_ids, [3])
    for name in COPIES:
        (found,) = of_folder.copy(name).residuals(token_ids, [3])
        (expected,) = of_model.copy(name).residuals(token_ids, [3])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        if name != "8":
            assert (found - states_of_model).abs().max() > 1e-2, "control"
    assert of_folder.copy("4").name == "states-a/copies/4bits"


def test_a_folder_without_copies_is_written_and_named_as_before(root, tmp_path):
    folder = ta.write_states(root / "a", tmp_path / "plain", texts=root / "states-a")
    plain = json.loads((folder / INDEX).read_text())
    with_copies = json.loads((root / "states-a" / INDEX).read_text())
    assert with_copies.keys() - plain.keys() == {"parameters", "copies"}
    assert {name: with_copies[name] for name in plain} == plain
    assert not (folder / "copies").exists()
    content = json.dumps(plain, sort_keys=True).encode()
    assert read_index(folder).digest == hashlib.sha256(content).hexdigest()


def test_the_key_of_a_folder_depends_on_its_copies(root, tmp_path):
    plain = ta.write_states(root / "a", tmp_path / "plain", texts=root / "states-a")
    shutil.copytree(root / "states-a", tmp_path / "other")
    content = json.loads((tmp_path / "other" / INDEX).read_text())
    content["copies"]["4"]["sha256"] = "0" * 64
    (tmp_path / "other" / INDEX).write_text(json.dumps(content))
    folders = [plain, root / "states-a", tmp_path / "other"]
    assert len({source_of(folder).fingerprint() for folder in folders}) == 3


@pytest.mark.parametrize("site", with_slow(["resid_post", "attn_out"], "attn_out"))
def test_one_copy_is_in_memory_at_a_time(root, tmp_path, monkeypatch, site):
    alive: list[weakref.ref] = []
    most = []

    def counted(model, bits):
        gc.disable()  # so that a cycle of references stays until the package collects it
        most.append(sum(reference() is not None for reference in alive))
        copy = rounded_copy(model, bits)
        alive.append(weakref.ref(copy.module))
        return copy

    monkeypatch.setattr(copies, "rounded_copy", counted)
    try:
        ta.write_states(root / "a", tmp_path / "states", texts=TEXTS, words=300, site=site, copies=True)
    finally:
        gc.enable()
    assert most == [0] * (len(COPIES) - 1)


@pytest.mark.ci_slow
def test_a_copy_that_cannot_be_written_leaves_nothing(root, tmp_path, monkeypatch):
    def failing(model, bits):
        if bits == 4:
            raise KeyboardInterrupt
        return rounded_copy(model, bits)

    monkeypatch.setattr(copies, "rounded_copy", failing)
    with pytest.raises(KeyboardInterrupt):
        ta.write_states(root / "a", tmp_path / "states", texts=TEXTS, words=300, copies=True)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    ta.write_states(root / "a", tmp_path / "states", texts=TEXTS, words=300, copies=True)
    assert set(read_index(tmp_path / "states").copies) == set(COPIES)


def test_weights_that_cannot_be_rounded_are_refused_before_the_model_reads(root, tmp_path, monkeypatch):
    model = load_model(ModelConfig(name="local", path=str(root / "a"), bos=None, corpus=None))
    monkeypatch.setattr("thinkalike.models.rounding.can_be_rounded", lambda _: False)
    monkeypatch.setattr(type(model), "residuals", lambda *_: pytest.fail("the model has read"))
    with pytest.raises(ModelError, match="cannot be rounded"):
        ta.write_states(model, tmp_path / "states", texts=TEXTS, words=300, copies=True)
    assert list(tmp_path.iterdir()) == []


# ---- what is wrong is one line


def cut(folder: Path) -> None:
    path = folder / "copies" / "4bits" / "states-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def edited(folder: Path) -> None:
    path = folder / "copies" / "4bits" / "states-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def edited_index(folder: Path) -> None:
    path = folder / "copies" / "4bits" / INDEX
    path.write_text(path.read_text() + " ")


def without_rows(folder: Path) -> None:
    (folder / "copies" / "4bits" / "rows.jsonl").unlink()


def not_copied(folder: Path) -> None:
    shutil.rmtree(folder / "copies")


def changed_copies(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        content = json.loads((folder / INDEX).read_text())
        content["copies"] = change(content["copies"])
        (folder / INDEX).write_text(json.dumps(content))

    return changed


def of_other_text(folder: Path) -> None:
    shutil.rmtree(folder / "copies" / "4bits")
    model = folder.parent / "a"
    ta.write_states(model, folder / "copies" / "4bits", texts=TEXTS[::-1], words=300)
    digest = hashlib.sha256((folder / "copies" / "4bits" / INDEX).read_bytes()).hexdigest()
    entry = {"file": "copies/4bits/states.json", "sha256": digest}
    changed_copies(lambda known: known | {"4": entry})(folder)


FILE = r"bad/copies/4bits/states-00000.safetensors is not the file that states.json lists"
BAD = {
    "a file that was cut": (cut, FILE),
    "a file that was edited": (edited, FILE),
    "an index that was edited": (edited_index, "bad/copies/4bits/states.json is not the file that"),
    "a file that is missing": (without_rows, "bad/copies/4bits/rows.jsonl is not there"),
    "copies that are missing": (not_copied, "bad/copies/2bits/states.json is not there, and"),
    "a copy that is not listed": (
        changed_copies(lambda known: {"2": known["2"]}),
        "bad/states.json lists no copy of a named 3: write the folder again",
    ),
    "copies that are no object": (changed_copies(lambda _: [1]), r"copies=\[1\] must be"),
    "a copy that is no object": (changed_copies(lambda _: {"4": 1}), r"copies\[4\]=1 must be"),
    "a copy that is a file": (
        changed_copies(lambda known: {"4": known["4"] | {"file": "rows.jsonl"}}),
        "rows.jsonl must end in states.json",
    ),
    "a copy that leaves the folder": (
        changed_copies(lambda known: {"4": known["4"] | {"file": "../a/states.json"}}),
        "must be the name of a file inside the folder",
    ),
    "a copy of other text": (of_other_text, "bad/copies/4bits has no states of"),
}  # fmt: skip


@pytest.mark.parametrize("case", [*BAD])
def test_what_is_wrong_with_a_copy_is_one_line(root, tmp_path, case):
    spoil, message = BAD[case]
    shutil.copytree(root / "states-a", tmp_path / "bad")
    shutil.copytree(root / "a", tmp_path / "a")
    spoil(tmp_path / "bad")
    with pytest.raises(ThinkalikeError, match=message) as raised:
        ta.compare(tmp_path / "bad", root / "b", **RULER)
    assert "\n" not in str(raised.value)


def test_measures_without_copies_do_not_need_them(root, tmp_path):
    shutil.copytree(root / "states-a", tmp_path / "states")
    shutil.rmtree(tmp_path / "states" / "copies")
    few = {"batches": 2, "tokens_per_batch": 128, "layers": [1]}
    found = ta.compare(tmp_path / "states", root / "states-b", **few)
    assert found.details["value"].notna().all()


def test_between_folders_without_copies_there_is_no_ruler(root, tmp_path):
    folder = ta.write_states(root / "a", tmp_path / "plain", texts=root / "states-a")
    with pytest.raises(DataError, match=r"have no weights: .*write_states\(\.\.\., copies=True\)"):
        ta.compare(folder, folder, **RULER)


@pytest.mark.ci_slow
def test_a_folder_without_copies_is_read_in_bits_of_one_with_copies(root, of_models, tmp_path, caplog):
    folder = ta.write_states(root / "a", tmp_path / "plain", texts=root / "states-a")
    found = ta.compare(folder, root / "states-b", **RULER)
    assert "values are read in bits of states-b alone" in caplog.text
    for column in ("value", "target_equivalent_bits"):
        np.testing.assert_allclose(found.details[column], of_models.details[column], atol=1e-6)
    assert found.details["source_equivalent_bits"].isna().all()
