"""States in the forms that people have them in give the numbers of the plain arrays, to the bit."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import thinkalike as ta
from function_calls import bridged
from thinkalike.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
ROWS, WIDTH, LAYERS = 48, 5, 3
TEXTS, POSITIONS = 12, 4
X = RNG.normal(size=(LAYERS, ROWS, WIDTH))
Y = RNG.normal(size=(2, ROWS, 4)) + X[:2, :, :4]
IN_TEXTS = X.reshape(LAYERS, TEXTS, POSITIONS, WIDTH)
HOOKS = [f"blocks.{layer}.hook_resid_post" for layer in range(LAYERS)]


class ActivationCache:
    """Has what TransformerLens's class of this name has."""

    def __init__(self, entries):
        self.cache_dict = entries


def write_npy(folder, arrays):
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def saved(path, arrays):
    """Write arrays into a file of the ending of a path, and return the path."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".npy":
        np.save(path, next(iter(arrays.values())))
    else:
        save_file({name: torch.tensor(array) for name, array in arrays.items()}, path)
    return path


def forms(folder):
    """Return the same states in each form."""
    by_number = {str(layer): X[layer] for layer in range(LAYERS)}
    return {
        "list": list(X),
        "tuple of tensors": tuple(torch.tensor(layer) for layer in X),
        "numbers": {layer: X[layer] for layer in range(LAYERS)},
        "hooks": dict(zip(HOOKS, X, strict=True)),
        "one position": dict(zip(HOOKS, X[:, :, None], strict=True)),
        "list of one position": list(X[:, :, None]),
        "cache": ActivationCache(
            {name: torch.tensor(layer[:, None]) for name, layer in zip(HOOKS, X, strict=True)}
            | {"blocks.0.attn.hook_pattern": torch.ones(ROWS, 2, 1, 1)}
        ),
        "npz": saved(folder / "x.npz", by_number),
        "safetensors": saved(folder / "x.safetensors", by_number),
        "npy": saved(folder / "x.npy", {"": X}),
        "folder": write_npy(folder / "x", by_number),
        "text of a path": str(saved(folder / "again.npz", by_number)),
        "list of texts": list(IN_TEXTS),
        "hooks of texts": dict(zip(HOOKS, IN_TEXTS, strict=True)),
    }


def across(result):
    """Return the values between the two sides, of each layer of the source."""
    table = result.details
    return table[table["source"] != table["target"]]["value"].tolist()


FORMS = [
    "list", "tuple of tensors", "numbers", "hooks", "one position", "list of one position", "cache", "npz",
    "safetensors", "npy", "folder", "text of a path",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_states_of_each_form_are_those_of_the_plain_arrays(form, tmp_path):
    plain = across(ta.compare(X, Y))
    assert across(ta.compare(forms(tmp_path)[form], Y)) == plain
    assert len(set(plain)) == LAYERS * 2, "control: each pair of layers has a value of its own"


def test_an_array_of_one_position_is_that_of_its_rows():
    assert across(ta.compare(X[0][:, None], Y[0][:, None])) == across(ta.compare(X[0], Y[0]))


@pytest.mark.parametrize("form", ["list of texts", "hooks of texts"])
def test_tokens_of_texts_are_rows_whose_intervals_are_over_texts(form, tmp_path):
    rows = pd.DataFrame({"text": [str(row) for row in range(ROWS)], "row": np.arange(ROWS)})
    text = np.arange(ROWS) // POSITIONS
    words = [f"word{row}" for row in range(ROWS)]
    by_text = pd.DataFrame({"sentence": text, "word": words, "row": np.arange(ROWS)})
    target = list(Y.reshape(2, TEXTS, POSITIONS, -1))
    result = ta.compare(forms(tmp_path)[form], target)
    expected = ta.compare(list(X), list(Y), stimuli=by_text)
    assert across(result) == across(expected)
    assert across(result) != across(ta.compare(list(X), list(Y), stimuli=rows)), "control: groups count"


def test_a_cache_of_transformer_lens_takes_the_place_of_a_model():
    _, cache = bridged().run_with_cache(torch.arange(5, 65).reshape(12, 5))
    layers = [cache[f"blocks.{layer}.hook_resid_post"] for layer in range(6)]
    result = ta.compare(cache, layers)
    by_block = {str(block): states for block, states in enumerate(layers)}
    assert across(result) == across(ta.compare(layers, by_block))
    same = result.details.query("source != target").set_index(["source_layer", "target_layer"])["value"]
    assert same["blocks.3.hook_resid_post", "3"] == pytest.approx(1, abs=1e-6)
    assert same["blocks.3.hook_resid_post", "0"] < 0.99, "control"


@pytest.mark.ci_slow
def test_files_of_states_are_called_by_their_names_and_go_with_stimuli(tmp_path):
    words = pd.DataFrame({"text": [f"word{row}" for row in range(ROWS)], "size": np.tile([1.0, 2.0, 4.0], ROWS // 3)})
    options = {"stimuli": words, "folds": 2, "references": 0, "together": "stimulus"}
    plain = ta.mlem({str(layer): X[layer] for layer in range(LAYERS)}, **options).details["importance"]
    distances = ta.rsa([X], stimuli=words).details["value"]
    in_forms = forms(tmp_path)
    for form in ("npy", "folder", "cache"):
        assert ta.mlem(in_forms[form], **options).details["importance"].tolist() == plain.tolist()
        assert ta.rsa([in_forms[form]], stimuli=words).details["value"].tolist() == distances.tolist()
    assert ta.rsa([in_forms["list"]], stimuli=words).details["value"].tolist() == distances.tolist()
    assert set(ta.compare(in_forms["npy"], Y).details["source"]) == {"x", "arrays2"}


@pytest.mark.parametrize(("name", "label"), [(b"Icon\r", "Icon\\r"), (b"gr\xf6\xdfe", "gr\\xf6\\xdfe")])
def test_a_file_may_have_any_name(name, label, tmp_path):
    file = saved(tmp_path / f"{os.fsdecode(name)}.npy", {"": X})
    result = ta.compare(file, Y, store=tmp_path / "store")
    assert across(result) == across(ta.compare(X, Y))
    assert set(result.details["source"]) == {label, "arrays2"}
    assert label in result.summary


def test_ids_of_two_files_must_be_the_same(tmp_path):
    ids = np.array([f"w{row}" for row in range(ROWS)])
    np.savez(tmp_path / "a.npz", ids=ids, low=X[0])
    np.savez(tmp_path / "b.npz", ids=ids, low=Y[0])
    np.savez(tmp_path / "c.npz", ids=ids[::-1], low=Y[0])
    found = ta.compare(tmp_path / "a.npz", tmp_path / "b.npz")
    assert across(found) == across(ta.compare(X[0], Y[0]))
    with pytest.raises(ConfigError, match=r"^source and target have rows of other ids: give stimuli="):
        ta.compare(tmp_path / "a.npz", tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda _: ta.stitch(X, "gpt2-mini"), "^stitch runs models, which arrays of states cannot .* cka, mutual_knn"),
        (lambda _: ta.ruler("x.npy", "y.npy"), "^ruler runs models, .* arrays go with cka"),
        (lambda folder: ta.loss(folder / "nowhere.npz"), "^loss runs models"),
        (lambda folder: ta.compare(folder / "nowhere.npy", Y), "^cannot read .*nowhere.npy: No such file"),
        (lambda _: ta.compare(ActivationCache({"hook_embed": X[0]}), Y), "^source is a cache without entries blocks"),
        (lambda _: ta.compare([X[0], X[1][:9]], Y), "^source: 1 is .* with a row for each of the 48 ids"),
        (lambda _: ta.compare([X[:, :8], X[:, :6]], Y), r"^source has layers of \(3, 8\) and of \(3, 6\) rows"),
        (
            lambda _: ta.compare({"blocks.0.attn.hook_z": X[None]}, Y),
            r"^source.*hook_z.* heads side by side",
        ),
        (lambda _: ta.compare([IN_TEXTS[0]], [Y[0].reshape(24, 2, 4)]), "^source has texts of 4 positions and target"),
        (lambda _: ta.compare(["gpt2-mini", "bert-mini"], Y), "^source is list: give a name"),
        (lambda _: ta.compare([], Y), "^source is list: give a name"),
        (lambda _: ta.mlem(X), "^stimuli is missing: a table that has a row for each row"),
        (lambda _: ta.compare(list(X), "gpt2-mini"), "^stimuli is missing: a table that has a row for each row"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(call, said, tmp_path):
    with pytest.raises((ConfigError, DataError), match=said) as error:
        call(tmp_path)
    assert "\n" not in str(error.value)
