"""Every number of every schema declares its range, and a value that is not possible is refused by its key."""

import dataclasses
import typing

import pytest

from thinkalike.config import (
    MEASURES,
    AnalyzeConfig,
    TrainConfig,
    compose_job,
    measure_schema,
)
from thinkalike.config.compose import GROUPS
from thinkalike.config.schema import Checked, ranged
from thinkalike.contrib.populations.config import NLIConfig, PairsConfig, PopulationConfig
from thinkalike.contrib.pretraining.config import PretrainConfig
from thinkalike.contrib.sae.config import SAEConfig
from thinkalike.errors import ConfigError, ModelError

SCHEMAS = {
    **{part: schema for part, schema in GROUPS.items() if part != "measure"},
    "pretrain": PretrainConfig,
    "nli": NLIConfig,
    "sae": SAEConfig,
    "pairs": PairsConfig,
    "population": PopulationConfig,
    "train": TrainConfig,
    "analyze": AnalyzeConfig,
    **{f"measure={kind}": measure_schema(kind) for kind in MEASURES},
}
OWN_WAY = {
    "keep",
    "steps",
    "layers",
    "generalizing",
    "heuristic",
    "cluster",
    "published",
}  # whose ranges are annotations


def holds_numbers(kind) -> bool:
    return kind in (int, float) or any(holds_numbers(inner) for inner in typing.get_args(kind))


def numbers(schema) -> list[dataclasses.Field]:
    hints = typing.get_type_hints(schema)
    return [item for item in dataclasses.fields(schema) if holds_numbers(hints[item.name]) and item.name not in OWN_WAY]


FIELDS = [(name, item) for name, schema in SCHEMAS.items() for item in numbers(schema)]


def test_every_number_of_every_schema_has_a_range():
    assert [f"{name}: {item.name}" for name, item in FIELDS if "range" not in item.metadata] == []
    assert len(FIELDS) > 60, "control"


def test_a_new_schema_is_checked_by_what_it_declares():
    @dataclasses.dataclass
    class Schema(Checked, part="new"):
        size: int = ranged(3, least=2, in_key=False)
        words: list[str] = dataclasses.field(default_factory=list)
        shares: dict[str, list[float]] = ranged(dict, least=0, most=1)

    assert Schema(size=1e3, shares={"a": [0, 1]}).size == 1000
    assert not isinstance(Schema(size=1e3).size, float)
    for wrong in (
        {"size": 1},
        {"size": float("inf")},
        {"size": 2.5},
        {"size": None},
        {"words": [""]},
        {"words": "a"},
        {"shares": {"a": [2]}},
    ):
        with pytest.raises(ConfigError, match=f"new.{next(iter(wrong))}"):
            Schema(**wrong)


def test_a_message_is_one_short_printable_line():
    with pytest.raises(ConfigError) as caught:
        PretrainConfig(tokens="\x1b[31m\n" * 500)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()
    assert str(ModelError("a model \x1b[2J, in\ntwo lines")) == "a model \ufffd[2J, in\ntwo lines"


@pytest.mark.parametrize(
    "layers",
    [
        *(0, "most", [], [[0, 0, 0]], [[0, "a"]], [[0, 1.5]], [[True, False]]),
        [[0, number] for number in range(5001)],
    ],
)
def test_layers_that_are_no_pairs_are_refused(layers):
    with pytest.raises(ConfigError, match="layers"):
        TrainConfig(layers=layers)
    assert TrainConfig(layers=[(0, 0), [0, 1], [1, 0]]).layers == [[0, 0], [0, 1], [1, 0]]


REFUSED = {  # by the key that the message names
    "stitch.lr_multiples": ["train stitch.lr_multiples=[0]", "train stitch.lr_multiples=[a]"],
    "seed": ["train seed=abc", "train seed=null"],
    "force": ["train force=perhaps"],
    "store": ["train store=", "train store=s3://a/b"],
    "model.revision": ["train model.revision=''"],
    "data.files": ["train data.files=a.txt"],
    "target.context": ["train target.context=1"],
    "model.corpus": ["train model.corpus=stdlob"],
    "scale": ["train scale=small"],
    "architecture": ["train model.architecture=3", "train task=pretrain model=gpt2"],
    "pretrain.tokens": ["train task=pretrain pretrain.tokens=0"],
    "pretrain.keep": [f"train task=pretrain pretrain.keep={keep}" for keep in ("log3", "'every=0'", "[9999]", "[-1]")],
    "dry_run": ["train dry_run=-1"],
}


@pytest.mark.parametrize(("key", "line"), [(key, line) for key, lines in REFUSED.items() for line in lines])
def test_a_value_that_is_not_possible_is_refused_by_its_key(key, line):
    entry, *words = line.split()
    with pytest.raises(ConfigError, match=key) as caught:
        compose_job(entry, words)
    assert str(caught.value).isprintable()


def test_values_that_are_possible_are_taken():
    """The positive control of the refusals above."""
    config = compose_job("train", ["stitch.steps=1e3", "stitch.lr_multiples=[0.5,2]", "model.revision=1000", "force=1"])
    assert (config.stitch.steps, config.stitch.lr_multiples, config.force) == (1000, [0.5, 2.0], True)
    assert config.model.revision == "1000"


NOT_HERE = {
    "model.device": "train.py model.device=cuda:77",
    "model.family": "analyze.py measure=loss model.family=lstm",
    "bert-mini": "train.py model@target=bert-mini",
    "layers": "train.py layers=[[0,3]]",
    "Nope": "analyze.py measure=rsa stimuli.features=[Nope]",
    "cannot be written": "train.py -m store={file} seed=0,1",
    "population.members": "analyze.py measure=population population=feather-berts population.members=nope",
    "model.architecture.colour": "train.py task=pretrain model=bert-mini +model.architecture.colour=red",
    "legacy": "train.py task=pretrain model.family=legacy",
}


@pytest.mark.parametrize("said", NOT_HERE)
def test_what_cannot_be_is_refused_before_anything_is_loaded(said, cli, tmp_path, monkeypatch):
    from thinkalike.models import load

    monkeypatch.setattr(load, "explained", None)  # loading a model would call it
    script, *words = NOT_HERE[said].split(" ")
    (tmp_path / "file").touch()
    refused = cli(script, *(word.replace("{file}", str(tmp_path / "file")) for word in words))
    assert said in refused.error
    assert not list((tmp_path / "results").rglob("*"))
