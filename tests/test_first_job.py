"""The first job compares two models where no word names one, and ends with a picture and what was found."""

import pandas as pd
import pytest

from conftest import composed
from thinkalike.config.schema import relevant
from thinkalike.instruments.stitching.instrument import sentence

PAIR = ("gelu-3l-mini", "solu-3l-mini")


def models(*words):
    config = composed(*words)
    return config.model.name, config.target.name


@pytest.mark.parametrize("words", [[], ["seed=1", "model.device=cpu"]])
def test_where_no_model_is_named_there_are_two(words):
    assert models(*words) == PAIR
    assert relevant(composed(*words)) == relevant(composed(*words, "model@target=solu-3l-mini"))


@pytest.mark.parametrize(
    ("words", "both"),
    [
        (["model=solu-3l-mini"], ("solu-3l-mini", "solu-3l-mini")),
        (["model@target=gelu-4l-mini"], ("gelu-3l-mini", "gelu-4l-mini")),
        (["model.path=somewhere"], ("gelu-3l-mini", "gelu-3l-mini")),
        (["target.dtype=bfloat16"], ("gelu-3l-mini", "gelu-3l-mini")),
        (["task=pretrain"], ("gelu-3l-mini", "gelu-3l-mini")),
    ],
)
def test_a_named_model_is_its_own_target_by_default(words, both):
    assert models(*words) == both


def test_how_the_source_runs_holds_for_the_target_too():
    config = composed("model.dtype=bfloat16", "model.context=32")
    assert (config.target.name, config.target.dtype, config.target.context) == ("solu-3l-mini", "bfloat16", 32)


def table(pairs=((0, 0), (1, 1), (2, 2)), target="b", **columns):
    count = len(pairs)
    rows = {
        "source": "a",
        "target": target,
        "source_layer": [layer for layer, _ in pairs],
        "target_layer": [depth for _, depth in pairs],
        "penalty": [0.205, 0.235, 0.128][:count],
        "identity_penalty": [1.44, 1.6, 0.384][:count],
        "floor_penalty": [0.0003, 0.0028, 0.0012][:count],
        "verdict": ["related"] * count,
    }
    return pd.DataFrame({**rows, **columns}).drop(columns=[name for name, each in columns.items() if each is None])


SENTENCES = {  # parts of a sentence that depend on the table
    "three layers": (table(), ["Layers 0 to 2 of a feed b", "0.13 to 0.23", "0.38 to 1.6 without a map", "related"]),
    "one layer into another": (table([(0, 1)], floor_penalty=None), ["Layer 0, before block 2, of a feeds b"]),
    "layers with a gap": (table([(0, 0), (2, 2)]), ["Layers 0, 2 of a feed b", "0.0003 to 0.0028 for b into itself"]),
    "itself": (table(target="a", penalty=[-0.007, -0.006, -0.005]), ["feed itself", "-0.007 to -0.005 nats"]),
    "two verdicts": (table(verdict=["related", "undecided", "related"]), ["related at 2 of 3, undecided at 1 of 3."]),
}


@pytest.mark.parametrize("what", SENTENCES)
def test_one_sentence_says_what_was_found(what):
    rows, parts = SENTENCES[what]
    assert all(part in sentence(rows) for part in parts), sentence(rows)


@pytest.mark.slow
@pytest.mark.ci_slow
def test_a_job_prints_its_sentence_for_each_direction(cli, small_stitching):
    done = cli("train.py", "layers=[[0,0],[1,1]]", "stitch.both=true", *small_stitching)
    ways = [sentence(rows) for _, rows in done.result.table.groupby(["source", "target"], sort=False)]
    assert all(way in " ".join(done.stdout.split()) for way in ways)
