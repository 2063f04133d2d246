"""Calls of the functions for notebooks, with the same text and stimuli as commands read from files."""

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import thinkalike
import tiny
from conftest import of_core
from thinkalike import load_model
from thinkalike.config import MEASURES
from thinkalike.models.checkpoints import ASSETS

PAIR = ("gelu-3l-mini", "solu-3l-mini")
FRAME = pd.DataFrame(
    [(f"The {word}{'s' * many} ran.", f"{word}{'s' * many}", many, kind)
     for kind, words in (("animal", "dog cat cow"), ("thing", "car bus jet")) for word in words.split()
     for many in (0, 1)],
    columns=["text", "word", "many", "kind"],
)  # fmt: skip


TEXTS = [tiny.document(seed, 60) for seed in range(240)]
FEW = {"batches": 2, "tokens_per_batch": 128}
PROFILES = {"folds": 2, "references": 0, "permutations": 2, "together": "stimulus"}
SETTINGS = {  # small sizes, by their names on a command line, of which a keyword is the last part
    "stitch": {"layers": [1], "seed": 1, "model.site": "resid_mid", "stitch.steps": 3, "stitch.tokens_per_step": 256,
               "data.evaluation_tokens": 2048, "data.evaluation_share": 0.5},
    "cka": {f"measure.{name}": value for name, value in FEW.items()},
    "mutual_knn": {f"measure.{name}": value for name, value in FEW.items()} | {"measure.neighbours": 5},
    "r2": {"layers": [[1, 1]], "measure.words": 8000},
    "mlem": {"seed": 1} | {f"measure.{name}": value for name, value in PROFILES.items()},
    "rsa": {},
    "diff": {"measure.tokens": 256, "measure.tokens_per_part": 64},
    "trajectory": {"measure.tokens": 256, "measure.folds": 2, "measure.permutations": 19, "measure.least": 2,
                   "measure.importance": False, "stimuli.sample": 60},
    "loss": {"data.evaluation_tokens": 2048},
    "lineage": {"measure.similar_units": False},
    "ruler": {"layers": [[1, 1]], "measure.words": 8000},
}  # fmt: skip


ALIKE = [kind for kind in of_core(MEASURES) if kind not in SETTINGS]  # measures of layer pairs, all in the same way
SETTINGS |= dict.fromkeys(ALIKE, SETTINGS["cka"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path):
    """The same text and stimuli as files, for commands."""
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    FRAME.to_parquet(tmp_path / "words.parquet")
    return {"text": ["data=text", "data.files=[texts.jsonl]"], "words": ["stimuli=table", "stimuli.path=words.parquet"]}


def called(kind, store, models):
    """The result of a function, of small sizes."""
    keywords = {name.rpartition(".")[2]: value for name, value in SETTINGS[kind].items()}
    keywords |= {} if kind in JOBS else {"measure": kind}
    if kind != "lineage":  # which reads weights alone
        keywords |= {"stimuli": FRAME} if kind in ("mlem", "rsa") else {"texts": TEXTS}
    given = [models] if kind == "rsa" else models
    return getattr(thinkalike, "compare" if "measure" in keywords else kind)(*given, store=store, **keywords)


def words_of(kind, names, files):
    """The same on a command line."""
    own = [f"{name}={value}" for name, value in SETTINGS[kind].items()]
    models = [f"{part}={name}" for part, name in zip(("model", "model@target"), names, strict=False)]
    read = [] if kind == "lineage" else files["words" if kind in ("mlem", "rsa") else "text"]
    return [*([] if kind == "stitch" else [f"measure={kind}"]), *models, *read, *own]


JOBS = {"stitch": ["stitch"], "compare": ["cka", "r2", "ruler", "mutual_knn", "svcca", "distance", "jsd", "rsa", "mlem",
                                           "diff"],
        "ruler": ["ruler"], "loss": ["loss"],
        "mlem": ["mlem"], "rsa": ["rsa"], "diff": ["diff"], "lineage": ["lineage"],
        "trajectory": ["trajectory"]}  # fmt: skip


def bridged(name="gpt2-mini"):
    from transformer_lens.model_bridge import TransformerBridge

    folder = str(ASSETS / name)
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return TransformerBridge.boot_transformers(
        folder, hf_model=module, tokenizer=copy.deepcopy(tokenizer), device="cpu", dtype=torch.float32
    )


def check_table_of_command(kind, files, cli, tmp_path):
    """By name it is the very same result, which the store has already, and in memory the same table to the bit."""
    for step in (1, 2) if kind == "trajectory" else ():  # whose stimuli are of the grammar: the tokenizer knows letters
        tiny.write_checkpoint("gpt2", tmp_path / "run" / f"step{step}", seed=step)
    alone = {"mlem": PAIR[:1], "loss": PAIR[:1], "trajectory": [str(tmp_path / "run")], "diff": [PAIR[0]] * 2}
    names = alone.get(kind, PAIR)
    theirs = cli("train.py" if kind == "stitch" else "analyze.py", *words_of(kind, names, files), "store=kept").result
    ours = called(kind, "kept", names)
    assert (ours.folder.resolve(), ours.key) == (theirs.folder.resolve(), theirs.key)
    held = called(kind, None, names if kind == "trajectory" else [load_model(name) for name in names])
    pd.testing.assert_frame_equal(held.table, theirs.table, check_exact=True)
    assert held.arrays.keys() == theirs.arrays.keys()
    assert all(np.array_equal(each, theirs.arrays[name]) for name, each in held.arrays.items())
