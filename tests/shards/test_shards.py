"""Folders of states in place of models: the same numbers from every format, and one line for whatever is wrong."""

import ast
import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import zstandard
from safetensors.torch import load_file, save_file

import thinkalike as ta
import tiny
from conftest import ROOT
from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, DataError, ModelError, ThinkalikeError
from thinkalike.instruments.layer_pairs.equal_depth import at_equal_depth
from thinkalike.models.families import EMBED
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.load import load_model
from thinkalike.models.model_config import configured
from thinkalike.shards import arrays
from thinkalike.shards.index import INDEX, read_index
from thinkalike.states.folder import StateFolder, hook_of, layer_of, offsets_of
from thinkalike.states.source import StateSource, closest_pairs, pairs_of_sources

TEXTS = [tiny.document(seed, words=120) for seed in range(60)]
FEW = {"batches": 4, "tokens_per_batch": 256}
PAGE = ROOT / "docs" / "how-to" / "states-from-elsewhere.md"
VLLM_LAYERS = [0, 1, 3, 4]  # of 4 blocks, as vLLM counts them


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Two tiny models, one of another tokenizer, and the folders of states of the first two on the same text."""
    root = tmp_path_factory.mktemp("states")
    for name, seed in (("a", 0), ("b", 1)):
        tiny.write_mini(root / name, seed=seed)
        ta.write_states(root / name, root / f"states-{name}", texts=TEXTS, words=5000, context=48)
    tiny.write_mini(root / "foreign", seed=2, cutter=tiny.other_tokenizer())
    return root


def both(root, *sides, **settings):
    """The results of a comparison with folders of states, and of the models themselves on the same text."""
    text = next(side for side in sides if side.startswith("states"))
    models = [root / side.removeprefix("states-") for side in sides]
    of_states = ta.compare(*(root / side for side in sides), **settings)
    return of_states, ta.compare(*models, texts=root / text, **settings)


def check_same(ours, theirs, columns, atol=1e-5):
    for column in columns:
        found, expected = (np.asarray(result.details[column], dtype=float) for result in (ours, theirs))
        assert np.isfinite(expected).any()
        assert np.allclose(found, expected, atol=atol, rtol=0, equal_nan=True), column


# ---- the same numbers


SIDES = [("states-a", "states-b"), ("states-a", "b"), ("a", "states-b")]


@pytest.mark.ci_slow
@pytest.mark.parametrize("sides", SIDES)
def test_cka_is_that_of_the_models(root, sides):
    ours, theirs = both(root, *sides, **FEW)
    check_same(ours, theirs, ["value", "low", "high"])
    assert ours.scalars["documents"] == theirs.scalars["documents"] > 8
    assert [model["name"] for model in ours.provenance["models"]] == list(sides)


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    "settings",
    [
        {"measure": "mutual_knn"},
        {"measure": "procrustes"},
        {"conditional_on": "token_position"},
        {"flatten": "mean", "batches": 2},
        {"null": True, "permutations": 9},
    ],
)
def test_its_kin_and_its_settings_are_those_of_the_models(root, settings):
    ours, theirs = both(root, "states-a", "states-b", **{**FEW, **settings})
    check_same(ours, theirs, ["value"])


@pytest.mark.ci_slow
def test_r2_is_that_of_the_models(root):
    ours, theirs = both(root, "states-a", "states-b", measure="r2", words=4096, layers=[1, 3])
    check_same(ours, theirs, ["value", "value_backward", "r2_forward", "low", "high"])


@pytest.mark.ci_slow
def test_words_of_models_that_cut_text_otherwise_are_the_same(root):
    ours, theirs = both(root, "states-a", "foreign", **FEW)
    check_same(ours, theirs, ["value"])
    ta.write_states(root / "foreign", root / "states-foreign", texts=root / "states-a")
    check_same(ta.compare(root / "states-a", root / "states-foreign", **FEW), theirs, ["value"])
    assert "words" in ours.provenance["data"]["level"] or ours.provenance["data"]["level"] == "word"


@pytest.mark.ci_slow
def test_the_ruler_reads_in_bits_of_the_side_that_has_weights(root, capsys, caplog):
    ours, theirs = both(root, "states-a", "b", measure="ruler", words=4096)
    check_same(
        ours,
        theirs,
        [
            "value",
            "above_local_mixing",
            "source_local_mixing",
            "target_local_mixing",
            "target_equivalent_bits",
            "target_random_control",
        ],
    )
    assert ours.details["source_equivalent_bits"].isna().all()
    assert theirs.details["source_equivalent_bits"].notna().all(), "control"
    assert "states-a is a folder of states, which has no weights: values are read in bits of b alone" in caplog.text
    ours.instrument.show(ours)
    shown = capsys.readouterr().out
    assert "of b" in shown
    assert "bits of states-a" not in shown
    assert [headline.name for headline in ours.instrument.headlines(ours)] == [
        "residual_r2",
        "equivalent_bits_of_target",
    ]
    with pytest.raises(DataError, match=r'states-a and states-b have no weights: .*measure="r2"'):
        ta.compare(root / "states-a", root / "states-b", measure="ruler", words=4096)


def test_a_model_beside_its_own_states_is_itself(root):
    found = ta.compare(root / "states-a", root / "a", **FEW).details
    across = found[(found["source"] != found["target"]) & (found["source_layer"] == found["target_layer"])]
    assert np.allclose(across["value"], 1, atol=1e-6)


@pytest.mark.ci_slow
def test_mlem_and_rsa_are_those_of_the_models(root):
    for name in ("a", "b"):
        ta.write_states(root / name, root / f"stimuli-{name}", stimuli="crossed")
    folders, models = [root / "stimuli-a", root / "stimuli-b"], [root / "a", root / "b"]
    small = {"stimuli": "crossed", "sample": 60}
    ours, theirs = (ta.rsa(sides, **small) for sides in (folders, models))
    check_same(ours, theirs, ["value", "low", "high"])
    few = {**small, "folds": 2, "permutations": 1, "references": 0}
    ours, theirs = (ta.mlem(sides[0], layers=[1, 2], **few) for sides in (folders, models))
    check_same(ours, theirs, ["importance"])
    some = ta.write_states(root / "a", root / "some-stimuli", stimuli="crossed", layers=[1, 3])
    with pytest.raises(DataError, match="layers: some-stimuli has no states of layer 2, only of 1, 3"):
        ta.mlem(some, layers=[2], **few)
    with pytest.raises(DataError, match=r"states-a has no states of '.*write states of the same rows"):
        ta.rsa([root / "states-a", root / "b"], **small)


@pytest.mark.ci_slow
def test_files_of_fewer_bits_differ_by_their_rounding(root):
    ta.write_states(root / "a", root / "half", texts=TEXTS, words=5000, context=48, dtype="bfloat16")
    exact, rounded = (ta.compare(root / name, root / "states-b", **FEW) for name in ("states-a", "half"))
    across = exact.details["source"] != exact.details["target"]
    moved = (exact.details["value"] - rounded.details["value"])[across].abs()
    assert 0 < moved.max() < 1e-3
    size = [sum(file.stat().st_size for file in (root / name).glob("states-*")) for name in ("states-a", "half")]
    assert size[1] < 0.55 * size[0]


@pytest.mark.ci_slow
def test_some_layers_of_other_sites_are_compared_by_their_names(root):
    chosen = {"site": ["attn_out", "mlp_out"], "layers": [1, 3]}
    ta.write_states(root / "a", root / "sites", texts=TEXTS, words=2000, **chosen)
    ours = ta.compare(root / "sites", root / "b", **chosen, **FEW)
    theirs = ta.compare(root / "a", root / "b", texts=root / "sites", **chosen, **FEW)
    check_same(ours, theirs, ["value"])
    assert set(ours.details["source_layer"]) == {"1.attn_out", "1.mlp_out", "3.attn_out", "3.mlp_out"}
    with pytest.raises(ConfigError, match=r'site="resid_post" is no site of sites, which has blocks.1.hook_attn_out'):
        ta.compare(root / "sites", root / "b", **FEW)


# ---- a source like any other


def source_of(path: Path) -> StateFolder:
    return StateFolder(ModelConfig(name="local", path=str(path), bos=None, corpus=None))


def test_models_and_folders_are_sources_that_give_the_same(root):
    model, folder = load_model(root / "a"), source_of(root / "states-a")
    assert isinstance(model, StateSource)
    assert isinstance(folder, StateSource)
    for name in ("ids_fingerprint", "bos_each_row", "vocabulary", "d_model", "n_layers", "dtype", "device"):
        assert getattr(model, name) == getattr(folder, name), name
    assert list(model.layers) == list(folder.layers)
    assert model.width(1) == folder.width(1)
    rows = folder.token_rows(torch.arange(3))
    states = [source.residuals(rows.tokens, [3, 0], rows.is_token.long()) for source in (folder, model)]
    for ours, theirs in zip(*states, strict=True):
        assert torch.allclose(ours[rows.is_token], theirs[rows.is_token], atol=1e-5)
    some = model.sampled_vocabulary()
    assert torch.equal(some, folder.sampled_vocabulary())
    assert torch.equal(model.embedded(some), folder.embedded(some))
    for row in range(len(folder.rows)):
        assert folder.encoded(folder.text(row)) == model.encoded(folder.text(row))


def test_layers_have_the_names_of_transformer_lens():
    hooks = ["hook_embed", "blocks.0.hook_resid_pre", "blocks.2.hook_resid_pre", "blocks.1.attn.hook_z",
             "blocks.1.mlp.hook_post", "blocks.3.hook_resid_post", "ln_final.hook_normalized"]  # fmt: skip
    layers = [layer_of(hook, 4) for hook in hooks]
    assert [hook_of(layer) for layer in layers] == hooks
    assert layers[1] == EMBED
    assert layers[5] == 3
    assert int(layers[6]) == 4


def test_characters_of_tokens_are_known_where_a_row_is_cut_otherwise():
    cutter = tiny.tokenizer()
    text = "abc defg ha"
    whole = cutter(text, return_offsets_mapping=True)
    assert offsets_of(cutter, whole["input_ids"], text) == [tuple(span) for span in whole["offset_mapping"]]
    single = [cutter(letter)["input_ids"][0] for letter in "abc"]
    assert offsets_of(cutter, single, "abc") == [(0, 1), (1, 2), (2, 3)]


def test_a_folder_may_have_the_longest_name(root):
    folder = ta.write_states(root / "a", root / ("é" * 127), texts=TEXTS, words=300, layers=[0])
    assert (folder / "embedding.safetensors").exists()
    with pytest.raises(ConfigError, match=r"^folder=.* has a name of more than 255 bytes"):
        ta.write_states(root / "a", root / ("é" * 128), texts=TEXTS)


def test_pairs_are_of_layers_that_there_are(root):
    some, many = [0.0, 40 / 79, 1.0], [layer / 18 for layer in range(19)]
    assert closest_pairs(5, some, many) == [(0, 0), (1, 9), (2, 18)]
    assert closest_pairs(2, many, [20 / 79, 40 / 79, 60 / 79]) == [(5, 0), (14, 2)]
    folder = ta.write_states(root / "a", root / "two", texts=TEXTS, words=300, layers=[1, 3])
    assert pairs_of_sources(5, source_of(folder), load_model(root / "b")) == [(1, 1), (3, 3)]


def test_sentences_are_about_layers_of_equal_depth_where_some_are_missing():
    def table(rows, columns):
        cells = [("a", "b", row, column, 0.0) for row in rows for column in columns]
        return pd.DataFrame(cells, columns=["source", "target", "source_layer", "target_layer", "value"])

    def pairs(rows, columns):
        chosen = at_equal_depth(table(rows, columns))
        return list(zip(chosen["source_layer"], chosen["target_layer"], strict=True))

    assert pairs([20, 40, 79], range(19)) == [(20, 5), (40, 9), (79, 18)]
    assert pairs(range(3), range(5)) == [(0, 0), (1, 2), (2, 4)], "control: all layers"


def test_a_row_is_read_when_it_is_asked_for(root, monkeypatch):
    read: list[int] = []
    part = arrays._SafetensorsArray.part

    def counted(own, start, stop):
        read.append(stop - start)
        return part(own, start, stop)

    monkeypatch.setattr(arrays._SafetensorsArray, "part", counted)
    folder = source_of(root / "states-a")
    read.clear()
    rows = folder.token_rows(torch.tensor([5]))
    folder.residuals(rows.tokens, [0, 2])
    assert read == [rows.tokens.shape[1]] * 2


@pytest.mark.ci_slow
def test_shards_are_written_as_large_as_they_may_be(root, monkeypatch):
    monkeypatch.setattr("thinkalike.states.writing.LARGEST_SHARD", 2**16)
    folder = ta.write_states(root / "a", root / "several", texts=TEXTS, words=2000, layers=[0])
    assert len(read_index(folder).shards) > 3
    ours = ta.compare(folder, root / "b", **FEW)
    theirs = ta.compare(root / "a", root / "b", texts=folder, layers=pairs_with([0]), **FEW)
    assert np.allclose(ours.arrays["value"], theirs.arrays["value"], atol=1e-5)


# ---- commands and stores


@pytest.mark.ci_slow
def test_results_are_kept_by_the_digests_of_files(root, tmp_path):
    first = ta.compare(root / "states-a", root / "states-b", store=tmp_path / "store", **FEW)
    again = ta.compare(root / "states-a", root / "states-b", store=tmp_path / "store", **FEW)
    assert again.key == first.key
    assert len(list((tmp_path / "store" / "cka").glob("[!.]*"))) == 1
    shutil.copytree(root / "states-b", tmp_path / "states-b")
    assert ta.compare(root / "states-a", tmp_path / "states-b", store=tmp_path / "store", **FEW).key == first.key
    states = tmp_path / "states-b" / "states-00000.safetensors"
    changed = load_file(states)
    changed["blocks.0.hook_resid_post"] *= 1.5
    save_file(changed, states)
    rewrite_digest(tmp_path / "states-b", states.name)
    assert ta.compare(root / "states-a", tmp_path / "states-b", store=tmp_path / "store", **FEW).key != first.key


@pytest.mark.ci_slow
def test_a_folder_is_a_model_on_the_command_line(root, cli):
    words = ["measure=cka", f"model={root}/states-a", f"model@target={root}/states-b"]
    few = ["measure.batches=4", "measure.tokens_per_batch=256"]
    run = cli("analyze", *words, *few, "dry_run=true")
    assert run.status == 0, run.stderr
    run = cli("analyze", *words, *few)
    assert run.status == 0, run.stderr
    table = run.result.details
    assert np.allclose(table["value"], ta.compare(root / "states-a", root / "states-b", **FEW).details["value"])


# ---- vLLM


def write_as_vllm(model, prompts: Path, folder: Path, *, layers_first=False, packed=False) -> None:
    """Write what `extract_hidden_states` does: a file for each prompt, with what enters each of some blocks."""
    folder.mkdir()
    for number, line in enumerate(prompts.read_text().splitlines()):
        ids = torch.tensor(json.loads(line)["prompt_token_ids"])
        entering = [EMBED if layer == 0 else layer - 1 for layer in VLLM_LAYERS]
        states = torch.stack([state[0] for state in model.residuals(ids[None], entering)], 1)
        states = states.transpose(0, 1).contiguous() if layers_first else states
        path = folder / f"{hashlib.sha256(bytes([number])).hexdigest()[:12]}.safetensors"
        save_file({"token_ids": ids, "hidden_states": states}, path)
        if packed:
            path.with_name(f"{path.name}.zst").write_bytes(zstandard.compress(path.read_bytes()))
            path.unlink()


@pytest.fixture(scope="module")
def prompts(root) -> Path:
    return ta.write_prompts(root / "a", root / "prompts.jsonl", texts=TEXTS, words=2000, context=64)


def pairs_with(layers: list[int], count: int = 4) -> list[list[int]]:
    """Some layers of one model with all of another, as which tokens are massive depends on the layers compared."""
    return [[layer, depth] for layer in layers for depth in range(count)]


def index_of_vllm(root, folder: Path, prompts: Path, **changes):
    settings = {"model": "a", "tokenizer": str(root / "a"), "blocks": 4, "layers": VLLM_LAYERS, "prompts": prompts}
    return ta.index_states(folder, **(settings | changes))


@pytest.mark.ci_slow
@pytest.mark.parametrize("variant", [{}, {"layers_first": True}, {"packed": True}])
def test_files_of_vllm_give_the_numbers_of_the_model(root, prompts, tmp_path, variant):
    write_as_vllm(load_model(root / "a"), prompts, tmp_path / "vllm", **variant)
    index_of_vllm(root, tmp_path / "vllm", prompts)
    folder = source_of(tmp_path / "vllm")
    assert list(folder.layers) == [0, 2, 3], "what enters blocks 1 and 3, and what the last gives"
    ours = ta.compare(tmp_path / "vllm", root / "b", **FEW)
    theirs = ta.compare(root / "a", root / "b", texts=tmp_path / "vllm", layers=pairs_with([0, 2, 3]), **FEW)
    assert np.allclose(ours.arrays["value"], theirs.arrays["value"], atol=1e-5)
    assert ours.scalars["documents"] == theirs.scalars["documents"] > 20


@pytest.mark.ci_slow
def test_an_index_without_prompts_forgets_the_rows_of_one_with_them(root, prompts, tmp_path):
    """Prompts give the rows another order than the names of the files do."""
    folder = tmp_path / "vllm"
    write_as_vllm(load_model(root / "a"), prompts, folder)
    index_of_vllm(root, folder, prompts)
    assert "rows" in json.loads((folder / "states.json").read_text()), "control"
    index_of_vllm(root, folder, None)
    assert "rows" not in json.loads((folder / "states.json").read_text())


def test_prompts_of_no_text_are_not_written(root, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no words, so that there are no prompts"):
        ta.write_prompts(root / "a", tmp_path / "prompts.jsonl", texts=tmp_path / "empty.jsonl", words=100)
    assert not (tmp_path / "prompts.jsonl").exists()


@pytest.mark.ci_slow
def test_the_order_of_layers_and_the_tokenizer_are_in_the_key(root, prompts, tmp_path):
    """Both can be corrected while all files of states stay as they are."""
    folder = tmp_path / "vllm"
    write_as_vllm(load_model(root / "a"), prompts, folder)
    fingerprints = []
    for layers in (VLLM_LAYERS, VLLM_LAYERS[::-1]):
        index_of_vllm(root, folder, prompts, layers=layers)
        fingerprints.append(checkpoint_fingerprint(configured(str(folder), {})))

    tiny.tokenizer().save_pretrained(folder / "tokenizer")
    index = json.loads((folder / "states.json").read_text()) | {"tokenizer": "tokenizer"}
    index.pop("tokenizer_fingerprint", None)
    (folder / "states.json").write_text(json.dumps(index))
    fingerprints.append(checkpoint_fingerprint(configured(str(folder), {})))
    file = folder / "tokenizer" / "tokenizer.json"
    rules = json.loads(file.read_text())
    first, second = sorted(rules["model"]["vocab"], key=rules["model"]["vocab"].get)[-2:]
    ids = rules["model"]["vocab"]
    ids[first], ids[second] = ids[second], ids[first]
    file.write_text(json.dumps(rules))
    fingerprints.append(checkpoint_fingerprint(configured(str(folder), {})))
    assert len(set(fingerprints)) == 4


@pytest.mark.ci_slow
def test_layer_0_of_vllm_is_the_embedding_that_r2_takes_out(root, tmp_path, caplog):
    """These models add learnt positions to the embedding, whose mean over a row the covariates of position hold."""
    prompts = ta.write_prompts(root / "a", tmp_path / "prompts.jsonl", texts=TEXTS, words=4300, context=64)
    write_as_vllm(load_model(root / "a"), prompts, tmp_path / "vllm")
    index_of_vllm(root, tmp_path / "vllm", prompts)
    ours = ta.compare(tmp_path / "vllm", root / "b", measure="r2", words=4096)
    settings = {"measure": "r2", "words": 4096, "layers": pairs_with([0, 2, 3])}
    theirs = ta.compare(root / "a", root / "b", texts=tmp_path / "vllm", **settings)
    assert np.allclose(ours.arrays["r2_forward"], theirs.arrays["r2_forward"], atol=1e-5), "no embedding is needed"
    assert np.allclose(ours.arrays["value"], theirs.arrays["value"], atol=0.01)
    assert "has no embedding" not in caplog.text


# ---- SAELens and NumPy


def rows_of(model, count=12, context=32) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows cut out of a stream of text, and the states after block 1."""
    stream = torch.tensor([token for text in TEXTS for token in model.encoded(text)[0]])
    tokens = stream[: count * context].view(count, context)
    return tokens, model.residuals(tokens, [1])[0]


def write_as_saelens(folder: Path, tokens, states, *, with_ids=True) -> None:
    hook = "blocks.1.hook_resid_post"
    features = {hook: datasets.Array2D(shape=tuple(states.shape[1:]), dtype="float32")}
    columns = {hook: states.numpy()}
    if with_ids:
        features["token_ids"] = datasets.Sequence(datasets.Value("int32"), length=tokens.shape[1])
        columns["token_ids"] = tokens.to(torch.int32).numpy()
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    made.save_to_disk(folder, num_shards=2)


@pytest.mark.ci_slow
def test_data_sets_of_saelens_give_the_numbers_of_the_model(root, tmp_path, caplog):
    model = load_model(root / "a")
    write_as_saelens(tmp_path / "cached", *rows_of(model))
    ta.index_states(tmp_path / "cached", model="a", tokenizer=str(root / "a"), blocks=4)
    ours = ta.compare(tmp_path / "cached", root / "b", batches=2, tokens_per_batch=64)
    few = {"batches": 2, "tokens_per_batch": 64}
    theirs = ta.compare(root / "a", root / "b", texts=tmp_path / "cached", layers=pairs_with([1]), **few)
    assert np.allclose(ours.arrays["value"], theirs.arrays["value"], atol=1e-5)
    assert "cached does not say which document a row is of: each row counts as a document" in caplog.text
    words = ta.compare(tmp_path / "cached", root / "foreign", batches=2, tokens_per_batch=64)
    assert np.isfinite(words.details["value"]).all(), "rows that begin inside a word are aligned, too"


@pytest.mark.ci_slow
def test_data_sets_without_token_ids_are_compared_row_by_row(root, tmp_path, caplog):
    for name in ("a", "b"):
        write_as_saelens(tmp_path / name, *rows_of(load_model(root / name)), with_ids=False)
        ta.index_states(tmp_path / name, model=name, blocks=4, documents=[row // 3 for row in range(12)])
        write_as_saelens(tmp_path / f"{name}-ids", *rows_of(load_model(root / name)))
        ta.index_states(tmp_path / f"{name}-ids", model=name, blocks=4, documents=[row // 3 for row in range(12)])
    few = {"batches": 2, "tokens_per_batch": 64}
    ours, theirs = (ta.compare(tmp_path / f"a{end}", tmp_path / f"b{end}", **few) for end in ("", "-ids"))
    check_same(ours, theirs, ["value"])
    assert "a has no token ids: its rows are compared in the order in which they lie" in caplog.text
    with pytest.raises(DataError, match="its files have no token_ids"):
        ta.compare(tmp_path / "a", root / "b", **few)
    with pytest.raises(DataError, match="names no tokenizer"):
        ta.compare(tmp_path / "a-ids", tmp_path / "b-ids", measure="r2")


def test_ten_lines_of_numpy_write_a_folder(root, tmp_path, monkeypatch):
    """The lines of the page, run as they stand there."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = next(block for block in blocks if "np.save" in block)
    statements = [part for part in ast.parse(code).body if not isinstance(part, ast.Import | ast.ImportFrom)]
    assert len(statements) <= 10
    model = load_model("gelu-3l-mini")
    tokens, states = rows_of(model)
    monkeypatch.chdir(tmp_path)
    exec(code, {"tokens": tokens.numpy(), "states": states.numpy()})
    ours = ta.compare("states-b", "solu-3l-mini", batches=2, tokens_per_batch=64)
    few = {"batches": 2, "tokens_per_batch": 64, "layers": pairs_with([1], 3)}
    theirs = ta.compare("gelu-3l-mini", "solu-3l-mini", texts="states-b", **few)
    assert np.allclose(ours.arrays["value"], theirs.arrays["value"], atol=1e-5)


# ---- what is wrong is one line


def rewrite_digest(folder: Path, name: str) -> None:
    """Let the index list a file as it is now."""
    index = json.loads((folder / INDEX).read_text())
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    for shard in index["shards"]:
        shard["files"] = {file: digest if file == name else known for file, known in shard["files"].items()}
    (folder / INDEX).write_text(json.dumps(index))


def changed_index(**entries) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        (folder / INDEX).write_text(json.dumps(index | entries))

    return change


def changed_states(change_arrays, *, is_listed=True) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "states-00000.safetensors"
        found = load_file(path)
        change_arrays(found)
        save_file(found, path)
        if is_listed:
            rewrite_digest(folder, path.name)

    return change


EQUAL_ROWS = torch.tensor([[5, 6, 7], [8, 9, 5], [5, 6, 7]])


def folder_of_arrays(folder: Path, tokens: torch.Tensor, states: torch.Tensor, rows: int | None = None) -> StateFolder:
    """A folder of states at block 1, whose index says that it has so many rows, by default those that it has."""
    hook = "blocks.1.hook_resid_post"
    folder.mkdir()
    np.save(folder / "token_ids.npy", tokens.numpy())
    np.save(folder / f"{hook}.npy", states.numpy())
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.npy")}
    index = {
        "format": 1,
        "model": "elsewhere",
        "blocks": 3,
        "tokenizer": "gelu-3l-mini",
        "dtype": "float32",
        "layout": "padded",
        "hooks": {hook: states.shape[-1]},
        "shards": [{"rows": rows or len(states), "files": files}],
    }
    (folder / INDEX).write_text(json.dumps(index))
    return StateFolder(ModelConfig(name="local", path=str(folder), bos=None, corpus=None))


def test_rows_of_equal_tokens_and_other_states_are_refused(tmp_path):
    """A row is looked up by its tokens, and the states of the first such row would stand for all."""
    states = torch.randn(3, 3, 4)
    states[2] = states[0] * (1 + 1e-3 * torch.randn(3, 4))  # as another batch rounds
    rounded = folder_of_arrays(tmp_path / "rounded", EQUAL_ROWS, states)
    (found,) = rounded.residuals(torch.tensor([[5, 6, 7], [8, 9, 5]]), [1])
    assert torch.equal(found, states[:2])

    states[2, 1] = -states[0, 1]  # at a single token
    folder = folder_of_arrays(tmp_path / "other", EQUAL_ROWS, states)
    (found,) = folder.residuals(torch.tensor([[8, 9, 5]]), [1])
    assert torch.equal(found, states[1:2])
    message = "other: rows 0 and 2 have the same tokens but other states at blocks.1.hook_resid_post"
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            folder.residuals(torch.tensor([[5, 6, 7]]), [1])


def test_rows_that_repeat_others_are_left_out(tmp_path, caplog):
    """They are no independent documents, as little as copies of a text."""
    tokens, states = torch.randint(5, 300, (40, 8)), torch.randn(40, 8, 6)
    other_states = states + torch.randn(40, 8, 6)
    repeated = torch.cat([torch.arange(40), torch.arange(40)])
    results = []
    for name, rows in (("once", torch.arange(40)), ("twice", repeated)):
        folders = []
        for side, states_of_side in (("a", states), ("b", other_states)):
            path = tmp_path / f"{name}-{side}"
            folder_of_arrays(path, tokens[rows], states_of_side[rows])
            folders.append(path)
        results.append(ta.compare(*folders, tokens_per_batch=320))
        if name == "once":
            assert "repeat" not in caplog.text, "control: no row is left out"
    once, twice = results
    assert twice.scalars["documents"] == once.scalars["documents"] == 40
    check_same(twice, once, ["value", "low", "high"], atol=0)
    assert "twice-a: 40 of 80 rows are left out, because they repeat the tokens of an earlier row" in caplog.text


def test_an_error_names_the_row_and_the_token_of_a_folder(tmp_path):
    tokens, states = torch.randint(5, 300, (40, 8)), torch.randn(40, 8, 6)
    folder_of_arrays(tmp_path / "a", tokens, states)
    states[17, 5] = 0
    folder_of_arrays(tmp_path / "b", tokens, states)
    with pytest.raises(DataError, match="target layer 1: row 17, token 5, is zero and has no direction"):
        ta.compare(tmp_path / "a", tmp_path / "b", measure="mutual_knn", tokens_per_batch=100, batches=2)


def test_a_wrong_number_of_rows_names_the_file_of_the_array(tmp_path):
    with pytest.raises(DataError, match=r"token_ids.npy: token_ids has the shape 3 x 3, not 4 x any as states.json"):
        folder_of_arrays(tmp_path / "bad", EQUAL_ROWS, torch.randn(3, 3, 4), rows=4)


@pytest.mark.parametrize("case", ["all channels", "one channel", "one token", "rounding"])
def test_an_outlier_channel_hides_no_other_states(case, tmp_path):
    """A channel with a large mean, and one with a large value at the first token, as in language models."""
    states = torch.randn(3, 3, 64)
    states[..., 0] += 300
    states[:, 0, 1] += 3000
    states[2] = states[0].bfloat16().float()
    if case == "all channels":
        states[2, :, 2:] = torch.randn(3, 62)
    elif case == "one channel":
        states[2, :, 5] = -states[0, :, 5].sign() * states[0, :, 5].abs().clamp(min=1)
    elif case == "one token":
        states[2, 1, 2:] = torch.randn(62)
    folder = folder_of_arrays(tmp_path / "outlier", EQUAL_ROWS, states)
    if case == "rounding":
        (found,) = folder.residuals(torch.tensor([[5, 6, 7]]), [1])
        assert torch.equal(found[0], states[0])
    else:
        with pytest.raises(DataError, match="rows 0 and 2 have the same tokens but other states"):
            folder.residuals(torch.tensor([[5, 6, 7]]), [1])


def moved_mean(states):
    """All channels have the mean 100, and float32 rounds none of them by as much as a token moves."""
    states += 100
    states[2] = 100 + torch.randn(3, 64)


def moved_outlier(states):
    """One channel of 300 moves by many times what float32 can round."""
    states[:2, :, 0] = 290
    states[2] = states[0]
    states[2, :, 0] = 310


def moved_beside_large_tokens(states):
    """First tokens are 30 times larger in all channels, and equal; the others are not."""
    states[:, 0] = 30 * states[0, 0].sign()
    states[1, 0] *= -1


def rounded_to_bfloat16(states):
    states += 100
    states[2] = states[0].bfloat16().float()


def rounded_where_all_is_zero(states):
    states[..., 32:] = 0
    states[2] = states[0]
    states[2, :, 40] = 1e-7


@pytest.mark.parametrize(
    ("change", "is_rounding"),
    [
        (moved_mean, False),
        (moved_outlier, False),
        (moved_beside_large_tokens, False),
        (rounded_to_bfloat16, True),
        (rounded_where_all_is_zero, True),
    ],
)
def test_rounding_is_small_beside_the_differences_of_tokens(change, is_rounding, tmp_path):
    """Neither a mean of all tokens, nor one channel, nor one token makes other states rounding."""
    states = torch.randn(3, 3, 64)
    change(states)
    folder = folder_of_arrays(tmp_path / "rows", EQUAL_ROWS, states)
    if is_rounding:
        (found,) = folder.residuals(torch.tensor([[5, 6, 7]]), [1])
        assert torch.equal(found[0], states[0])
    else:
        with pytest.raises(DataError, match="rows 0 and 2 have the same tokens but other states"):
            folder.residuals(torch.tensor([[5, 6, 7]]), [1])


def cut(folder: Path) -> None:
    path = folder / "states-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def cut_and_listed(folder: Path) -> None:
    cut(folder)
    rewrite_digest(folder, "states-00000.safetensors")


def removed(folder: Path) -> None:
    (folder / "states-00000.safetensors").unlink()


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def with_pickle(folder: Path) -> None:
    with (folder / "blocks.0.hook_resid_post.npy").open("wb") as file:
        np.lib.format.write_array(file, np.array([print], dtype=object))
    files = {"blocks.0.hook_resid_post.npy": "0" * 64}
    changed_index(shards=[{"rows": 1, "files": files}])(folder)
    rewrite_digest(folder, "blocks.0.hook_resid_post.npy")


def line_of_rows(number: int, line: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "rows.jsonl"
        lines = path.read_text().splitlines()
        lines[number] = line
        path.write_text("\n".join(lines) + "\n")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        changed_index(rows={"file": path.name, "sha256": digest})(folder)

    return change


def not_finite(found) -> None:
    found["blocks.1.hook_resid_post"][:, 3] = float("nan")


def lacking(found) -> None:
    del found["blocks.1.hook_resid_post"]


def of_other_ids(found) -> None:
    found["token_ids"] = (found["token_ids"] + 1) % 300


def with_ids_beyond(found) -> None:
    found["token_ids"][5] = 100_000


def narrower(found) -> None:
    found["blocks.1.hook_resid_post"] = found["blocks.1.hook_resid_post"][:, :-1].contiguous()


def shorter(found) -> None:
    found["blocks.1.hook_resid_post"] = found["blocks.1.hook_resid_post"][:-1].contiguous()


def wider_numbers(found) -> None:
    found["blocks.1.hook_resid_post"] = found["blocks.1.hook_resid_post"].double()


def whole_numbers(found) -> None:
    found["blocks.1.hook_resid_post"] = found["blocks.1.hook_resid_post"].to(torch.int8)


BAD = {
    "a file that was cut": (cut, r"states-00000.safetensors is not the file that states.json lists .*it was cut"),
    "a file that was cut before it was listed": (cut_and_listed, "cannot read .*states-00000.safetensors"),
    "a file that was changed": (changed_states(not_finite, is_listed=False), "is not the file that states.json lists"),
    "a file that is missing": (removed, "states-00000.safetensors is not there, and states.json lists it"),
    "an empty folder": (emptied, "config.json|is empty"),
    "states that are not finite": (
        changed_states(not_finite),
        r"blocks.1.hook_resid_post is nan in row \d+, token 0, channel 3",
    ),
    "a layer that is missing": (changed_states(lacking), "lacks blocks.1.hook_resid_post, which states.json lists"),
    "other token ids": (changed_states(of_other_ids), "bad has no states of .* of the .* rows of states-a"),
    "ids beyond the vocabulary": (changed_states(with_ids_beyond), "token_ids has 100000, which is no id from 0 to"),
    "a wrong width": (changed_states(narrower), r"has the shape \d+ x 31, not \d+ x 32 as states.json says"),
    "a state too few": (changed_states(shorter), r"has the shape \d+ x 32, not \d+ x 32 as states.json says"),
    "another dtype": (changed_states(wider_numbers), "hook_resid_post is float64, and states.json says float32"),
    "a dtype of no states": (changed_states(whole_numbers), "hook_resid_post is int8, and states.json says float32"),
    "an index of another dtype": (changed_index(dtype="float8"), "dtype=float8 must be one of float64, float32"),
    "an index of another format": (changed_index(format=2), "format=2 must be 1"),
    "a format that is no number": (changed_index(format=True), "format=True must be 1"),
    "a truth in words": (changed_index(bos="no"), "bos=no must be true or false"),
    "an entry of another name": (changed_index(vocabluary=300), "vocabluary=300 is no entry of an index"),
    "an index of another layout": (changed_index(layout="rows"), "layout=rows must be one of padded, flat"),
    "an index without shards": (changed_index(shards=[]), "shards=.* must list"),
    "an index that leaves the folder": (
        changed_index(shards=[{"rows": 1, "files": {"../x.safetensors": "0" * 64}}]),
        "must be the name of a file inside the folder",
    ),
    "a pickle by its ending": (
        changed_index(shards=[{"rows": 1, "files": {"x.pt": "0" * 64}}]),
        "x.pt must end in one of .safetensors",
    ),
    "a pickle in an array": (with_pickle, "cannot read .*hook_resid_post.npy: ValueError: .*Python objects"),
    "an unknown hook": (changed_index(hooks={"blocks.1.hook_resid": 24}), "is no hook point of the residual stream"),
    "a hook beyond the model": (
        changed_index(hooks={"blocks.9.hook_resid_post": 24}),
        "is beyond the last of 4 blocks",
    ),
    "a wrong tokenizer": (
        changed_index(tokenizer_fingerprint="0" * 16),
        "tokenizer=. is not the one that cut the text|cut a text otherwise|has no states",
    ),
    "a line with a name twice": (
        line_of_rows(0, '{"document": 1, "tokens": 3, "document": 2}'),
        "line 1 is no JSON object .it has the name document twice",
    ),
    "rows of no JSON": (line_of_rows(2, "{"), "rows.jsonl line 3 is no JSON object"),
    "rows of other lengths": (
        line_of_rows(0, '{"document": 1, "tokens": 3}'),
        r"rows has \d+ tokens in rows.jsonl, and \d+ in the shard",
    ),
    "rows without a document": (line_of_rows(0, '{"tokens": 3}'), "line 1: document=None must be a text or"),
}  # fmt: skip


@pytest.mark.parametrize("case", [*BAD])
def test_what_is_wrong_with_a_folder_is_one_line(root, tmp_path, case):
    spoil, message = BAD[case]
    shutil.copytree(root / "states-b", tmp_path / "bad")
    spoil(tmp_path / "bad")
    with pytest.raises(ThinkalikeError, match=message) as raised:
        ta.compare(root / "states-a", tmp_path / "bad", store=tmp_path / "store", **FEW)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "store").glob("*/*/result.json"))


def test_a_file_whose_lock_is_held_is_still_being_written(root, tmp_path):
    shutil.copytree(root / "states-b", tmp_path / "states-b")
    lock = tmp_path / "states-b" / "states-00000.safetensors.lock"
    lock.touch()
    assert len(source_of(tmp_path / "states-b").rows), "control: a lock that nobody holds"
    with lock.open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(DataError, match=r"states-00000.safetensors is still being written"):
            source_of(tmp_path / "states-b")


@pytest.mark.ci_slow
def test_sides_of_other_text_are_refused(root, tmp_path):
    ta.write_states(root / "b", tmp_path / "other", texts=[tiny.document(seed) for seed in range(100, 120)])
    with pytest.raises(DataError, match=r"other has no states of \d+ of the \d+ rows of states-a, such as"):
        ta.compare(root / "states-a", tmp_path / "other", **FEW)
    with pytest.raises(DataError, match="other has no states of"):
        ta.compare(root / "states-a", tmp_path / "other", measure="r2", words=4096)


REFUSED = {
    "a stitch": (lambda a, b: ta.stitch(a, b), ModelError, "is a folder of states, which has no weights to run"),
    "a diff": (lambda a, b: ta.diff(a, b), ModelError, "is a folder of states, which has no weights to run"),
    "logits": (lambda a, b: ta.compare(a, b, measure="jsd", **FEW), DataError, "has no weights"),
    "other text": (lambda a, b: ta.compare(a, b, texts="pydoc"), ConfigError, 'texts="pydoc": the text that is'),
    "a layer": (lambda a, b: ta.compare(a, b, layers=[7]), ConfigError, "layers: .7,7. is out of range"),
    "its text for a diff": (
        lambda a, b: ta.diff("gelu-3l-mini", "solu-3l-mini", texts=a),
        DataError,
        "has the rows of a folder of states",
    ),
    "a head": (lambda a, b: ta.compare(a, b, site="z", head=0), ConfigError, "head=0 has no effect on"),
    "the embedding": (
        lambda a, b: ta.compare(a, b, embed=True, **FEW),
        DataError,
        "states-a has no states at blocks.0.hook_resid_pre; it has blocks.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*REFUSED])
def test_what_a_folder_cannot_do_is_refused_in_one_line(root, case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message) as raised:
        call(root / "states-a", root / "states-b")
    assert "\n" not in str(raised.value)


@pytest.mark.ci_slow
def test_writing_refuses_what_would_be_lost_or_wrong(root, tmp_path, prompts, monkeypatch):
    with pytest.raises(ConfigError, match="states-a has something in it"):
        ta.write_states(root / "a", root / "states-a", texts=TEXTS)
    with pytest.raises(ConfigError, match="texts and stimuli"):
        ta.write_states(root / "a", tmp_path / "x", texts=TEXTS, stimuli="crossed")
    with pytest.raises(ModelError, match="has no layer 9"):
        ta.write_states(root / "a", tmp_path / "x", texts=TEXTS, layers=[9])
    with pytest.raises(ConfigError, match="context=1 must be at least 2"):
        ta.write_states(root / "a", tmp_path / "x", texts=TEXTS, context=1)
    monkeypatch.setattr("thinkalike.states.writing._write_index", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ta.write_states(root / "a", tmp_path / "x", texts=TEXTS, words=300)
    assert list(tmp_path.iterdir()) == [], "nothing is left of what was not finished"


def test_an_index_of_what_came_back_is_checked(root, tmp_path, prompts):
    folder = tmp_path / "vllm"
    write_as_vllm(load_model(root / "a"), prompts, folder)
    file = sorted(folder.iterdir())[0]
    with pytest.raises(ConfigError, match="layers is missing"):
        index_of_vllm(root, folder, prompts, layers=None)
    with pytest.raises(ConfigError, match="layers has 5, and vLLM counts those of 4 blocks from 0 to 4"):
        index_of_vllm(root, folder, prompts, layers=[0, 1, 3, 5])
    with pytest.raises(DataError, match=r"not .* tokens x 3 layers x width"):
        index_of_vllm(root, folder, prompts, layers=[0, 1, 3])
    with pytest.raises(ConfigError, match="documents has 2 entries, and"):
        index_of_vllm(root, folder, prompts, documents=[0, 1])
    lines = prompts.read_text().splitlines()
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(lines[:-1]))
    with pytest.raises(DataError, match="has token ids that no prompt has"):
        index_of_vllm(root, folder, few)
    aside = file.rename(tmp_path / "aside")
    with pytest.raises(DataError, match=r"lacks 1 of \d+ prompts, such as .*wait until all are written"):
        index_of_vllm(root, folder, prompts)
    aside.rename(file)
    (folder / "next.partial").touch()
    with pytest.raises(DataError, match=r"next.partial is still being written"):
        index_of_vllm(root, folder, prompts)
    (folder / "next.partial").unlink()
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    with pytest.raises(DataError, match="cannot read"):
        index_of_vllm(root, folder, prompts)
    file.write_bytes(whole)
    assert not (folder / INDEX).exists(), "no index is left of what was refused"
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"has no states: no .safetensors, .npy or .arrow file"):
        ta.index_states(tmp_path / "nothing", model="a", blocks=4)


WRONG_ARGUMENTS = {
    "text for a switch": {"embed": "no"},
    "a fraction of a word": {"words": 1.5},
    "a switch for a number": {"words": True},
    "no layers": {"layers": []},
    "one layer twice": {"layers": [1, 1]},
}


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_write_states_refuses_arguments_of_other_types(arguments, tmp_path):
    with pytest.raises(ValueError, match=f"^{next(iter(arguments))}="):
        ta.write_states("gelu-3l-mini", tmp_path / "states", texts=["A cat sat here."] * 5, **arguments)
    assert not (tmp_path / "states").exists()


def test_a_path_in_the_home_folder_is_written_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    texts = ["A cat sat here."] * 5
    ta.write_states("gelu-3l-mini", "~/states", texts=texts, words=5, layers=[0])
    ta.write_prompts("gelu-3l-mini", "~/prompts.jsonl", texts=texts, words=5)
    assert (tmp_path / "home" / "states").is_dir()
    assert (tmp_path / "home" / "prompts.jsonl").is_file()
    assert not (tmp_path / "~").exists()


NO_PROMPTS = {"binary": b"\xff\xfe\x00", "nested ids": b'{"prompt_token_ids": [[1]], "document": 0, "text": "x"}\n'}


@pytest.mark.parametrize("content", NO_PROMPTS.values(), ids=NO_PROMPTS)
def test_a_file_without_prompts_is_refused_by_its_name(content, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    for prompts in (path, tmp_path, tmp_path / "missing"):
        with pytest.raises(DataError, match=prompts.name):
            ta.index_states(tmp_path, model="mine", blocks=3, prompts=prompts)


@pytest.mark.parametrize(("layout", "reason"), [
    ("padded", "not 1000000000000 x any as states.json says"), ("flat", "1000000000000 rows, and .* 8 tokens"),
])  # fmt: skip
def test_a_count_of_rows_is_checked_before_rows_are_listed(layout, reason, tmp_path):
    files = {"token_ids.npy": np.ones((2, 4), dtype=int), "blocks.1.hook_resid_post.npy": np.ones((2, 4, 3), "f4")}
    for name, array in files.items():
        np.save(tmp_path / name, array)
    ta.index_states(tmp_path, model="mine", blocks=2)
    index = json.loads((tmp_path / INDEX).read_text()) | {"layout": layout}
    shard = index["shards"][0]
    shard["rows"] = 10**12
    if layout == "flat":
        for name, array in files.items():
            np.save(tmp_path / name, array.reshape(8, *array.shape[2:]))
            shard["files"][name] = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(DataError, match=reason):
        source_of(tmp_path)


def test_what_an_index_is_made_of_is_checked_before_files_are_written(tmp_path):
    np.save(tmp_path / "token_ids.npy", np.ones((2, 4), dtype="f4"))
    np.save(tmp_path / "blocks.1.hook_resid_post.npy", np.ones((2, 4, 3), "f4"))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"^documents has True: give texts or whole numbers"):
        ta.index_states(tmp_path, model="mine", blocks=2, documents=[True, False])
    with pytest.raises(ConfigError, match=r"^tokenizer='?nosuch'? cannot be read"):
        ta.index_states(tmp_path, model="mine", blocks=2, tokenizer="nosuch")
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(DataError, match=r"token_ids\.npy: token_ids is float32: write whole numbers"):
        ta.index_states(tmp_path, model="mine", blocks=2)


@pytest.mark.parametrize(
    "documents",
    [[0, np.int64(1)], iter([0, 1]), np.array([0, 1], dtype="u8"), torch.tensor([0, 1]), ["0", np.str_("1")]],
    ids=["numbers of NumPy", "iterator", "array", "tensor", "texts"],
)
def test_documents_may_be_numbers_of_any_library(documents, tmp_path):
    np.save(tmp_path / "token_ids.npy", np.arange(8).reshape(2, 4))
    np.save(tmp_path / "blocks.1.hook_resid_post.npy", np.ones((2, 4, 3), "f4"))
    ta.index_states(tmp_path, model="mine", blocks=2, documents=documents)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [str(json.loads(line)["document"]) for line in lines] == ["0", "1"]


def test_documents_have_an_order(tmp_path):
    with pytest.raises(ConfigError, match=r"^documents=\{0, 1\} must be a list with an item for each row"):
        ta.index_states(tmp_path, model="mine", blocks=2, documents={0, 1})


def test_an_index_that_cannot_be_made_leaves_a_folder_as_it_was(tmp_path):
    np.save(tmp_path / "token_ids.npy", np.ones((2, 4), dtype="f4"))
    np.save(tmp_path / "blocks.1.hook_resid_post.npy", np.ones((2, 4, 3), "f4"))
    before = sorted(tmp_path.iterdir())
    for content in (None, b"what an earlier call wrote"):
        if content is not None:
            (tmp_path / "rows.jsonl").write_bytes(content)
            before = sorted(tmp_path.iterdir())
        with pytest.raises(DataError, match="token_ids is float32: write whole numbers"):
            ta.index_states(tmp_path, model="mine", blocks=2, documents=[0, 1])
        assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "rows.jsonl").read_bytes() == content


def test_prompts_are_written_into_a_folder_that_is_made(root, tmp_path):
    file = ta.write_prompts(root / "a", tmp_path / "new" / "prompts.jsonl", texts=["A cat sat on a mat."] * 5)
    assert file.is_file()
    for folder in (".", file.parent):
        with pytest.raises(ConfigError, match="is a folder: give the path of a file in it"):
            ta.write_prompts(root / "a", folder, texts=["A cat sat on a mat."] * 5)


def written_arrays(folder: Path, **changed: object) -> Path:
    """A folder with token ids and states at block 1 as .npy files; further arrays by their names."""
    found = {"token_ids": np.arange(8).reshape(2, 4), "blocks.1.hook_resid_post": np.ones((2, 4, 3), "f4")}
    for name, array in (found | changed).items():
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.mark.parametrize("dtype", ["uint8", "uint16", ">u2", "uint32", "uint64"])
@pytest.mark.parametrize("suffix", ["npy", "safetensors", "arrow"])
def test_token_ids_may_be_numbers_without_a_sign(dtype, suffix, tmp_path):
    ids = np.arange(200, 208).reshape(2, 4).astype(dtype)
    states = np.ones((2, 4, 3), "f4")
    if suffix == "npy":
        written_arrays(tmp_path, token_ids=ids)
    elif suffix == "safetensors":
        in_order = torch.from_numpy(ids.astype(ids.dtype.newbyteorder("=")))
        found = {"token_ids": in_order, "blocks.1.hook_resid_post": torch.from_numpy(states)}
        save_file(found, tmp_path / "states.safetensors")
    else:
        in_order = ids.astype(ids.dtype.newbyteorder("="))
        columns = {"token_ids": pa.array([*in_order]), "blocks.1.hook_resid_post": pa.array(states.tolist())}
        columns["blocks.1.hook_resid_post"] = columns["blocks.1.hook_resid_post"].cast(pa.list_(pa.list_(pa.float32())))
        table = pa.table(columns)
        with pa.OSFile(str(tmp_path / "states.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    ta.index_states(tmp_path, model="mine", blocks=2)
    folder = source_of(tmp_path)
    assert folder.rows.token_ids(1).tolist() == [204, 205, 206, 207]
    assert folder.vocabulary == 208


def test_token_ids_of_16_bits_beside_bits_of_bfloat16_are_numbers(tmp_path):
    bits = torch.ones(2, 4, 3, dtype=torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    ta.index_states(written_arrays(tmp_path), model="mine", blocks=2)
    written_arrays(tmp_path, token_ids=np.arange(8, dtype="u2").reshape(2, 4), **{"blocks.1.hook_resid_post": bits})
    changed_index(dtype="bfloat16")(tmp_path)
    for file in ("token_ids.npy", "blocks.1.hook_resid_post.npy"):
        rewrite_digest(tmp_path, file)
    folder = source_of(tmp_path)
    assert folder.rows.token_ids(1).tolist() == [4, 5, 6, 7]
    (states,) = folder.residuals(torch.tensor([[4, 5, 6, 7]]), [1])
    assert states.eq(1).all()


ARRAYS_OF_NO_FOLDER = {
    "an id beyond int64": ({"token_ids": np.full((2, 4), 2**64 - 1, "u8")}, "18446744073709551615, which is no id"),
    "states as long doubles": ({"blocks.1.hook_resid_post": np.ones((2, 4, 3), np.longdouble)}, "write real numbers"),
    "dates": ({"token_ids": np.zeros((2, 4), "M8[s]")}, r"holds datetime64\[s\]: write real numbers"),
    "a single number": ({"blocks.0.hook_resid_post": np.float32(3)}, "hook points must be"),
    "one layer by two names": (
        {"blocks.01.hook_resid_post": np.ones((2, 4, 3), "f4")},
        r"hooks=blocks\.1\.hook_resid_post is the same hook point as blocks\.01\.hook_resid_post",
    ),
    "one layer in digits of another script": (
        {"blocks.\u0661.hook_resid_post": np.ones((2, 4, 3), "f4")},
        r"hook_resid_post is the same hook point as",
    ),
}


@pytest.mark.parametrize("case", ARRAYS_OF_NO_FOLDER)
def test_arrays_that_are_no_states_are_refused_in_one_line(case, tmp_path):
    arrays_of_case, message = ARRAYS_OF_NO_FOLDER[case]
    with pytest.raises(DataError, match=message):
        ta.index_states(written_arrays(tmp_path, **arrays_of_case), model="mine", blocks=2)
    assert not (tmp_path / INDEX).exists()
