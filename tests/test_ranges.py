"""Every number of a schema declares its range, and every setting that a job takes is in its key or changes a number."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from conftest import composed, every_second, untrained, with_ci_slow
from setting_checks import check_refused_before_loading, check_taken_settings_are_in_the_key, numbers, settings
from thinkalike.config import MEASURES, AnalyzeConfig, TrainConfig, compose_job, measure_schema
from thinkalike.config.groups import GROUPS
from thinkalike.config.schema import Checked, declared_of, setting
from thinkalike.errors import ConfigError, ModelError
from thinkalike.training.recipe import StitchConfig

SCHEMAS = {part: schema for part, schema in GROUPS.items() if part != "measure"}
SCHEMAS |= {"stitch": StitchConfig, "train": TrainConfig, "analyze": AnalyzeConfig}
SCHEMAS |= {f"measure={kind}": measure_schema(kind) for kind in MEASURES}


FIELDS = [(name, item) for name, schema in SCHEMAS.items() for item in numbers(schema)]


def test_every_number_of_every_schema_has_a_range():
    assert [f"{name}: {item.name}" for name, item in FIELDS if declared_of(item).range is None] == []
    assert len(FIELDS) > 60, "control"


def test_a_new_schema_is_checked_by_what_it_declares():
    @dataclasses.dataclass
    class Schema(Checked, part="new"):
        size: int = setting(3, least=2, in_key=False)
        words: list[str] = dataclasses.field(default_factory=list)
        shares: dict[str, list[float]] = setting(dict, least=0, most=1)

    assert Schema(size=1e3, shares={"a": [0, 1]}).size == 1000
    assert not isinstance(Schema(size=1e3).size, float)
    sizes = [("size", wrong) for wrong in (1, float("inf"), 2.5, None)]
    for name, wrong in [*sizes, ("words", [""]), ("words", "a"), ("shares", {"a": [2]})]:
        with pytest.raises(ConfigError, match=f"new.{name}"):
            Schema(**{name: wrong})


def test_a_message_is_one_short_printable_line():
    with pytest.raises(ConfigError) as caught:
        StitchConfig(steps="\x1b[31m\n" * 500)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()
    assert str(ModelError("a model \x1b[2J, in\ntwo lines")) == "a model \ufffd[2J, in two lines"


@pytest.mark.parametrize(
    "layers",
    [*(0, "most", [], [[0, 0, 0]], [[0, "a"]], [[0, 1.5]], [[True, False]]), [[0, number] for number in range(5001)]],
)
def test_layers_that_are_no_pairs_are_refused(layers):
    with pytest.raises(ConfigError, match="layers"):
        TrainConfig(layers=layers)
    assert TrainConfig(layers=[(0, 0), [0, 1], [1, 0]]).layers == [[0, 0], [0, 1], [1, 0]]


def test_values_that_are_possible_are_taken():
    """The positive control of what tests/config/test_config.py refuses."""
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
}


@pytest.mark.parametrize("said", every_second(NOT_HERE))
def test_what_cannot_be_is_refused_before_anything_is_loaded(said, cli, tmp_path, monkeypatch):
    check_refused_before_loading(said, NOT_HERE[said], cli, tmp_path, monkeypatch)


JOBS = {  # by name: what is fitted or measured
    "linear": "train stitch=linear",
    "low rank": "train stitch=low_rank",
    "paper": "train stitch=affine recipe=paper",
    "closed": "train stitch=least_squares",
    "rank": "train stitch=reduced_rank",
    "identity": "train stitch=identity",
    "loss": "analyze measure=loss model=gpt2-mini",
    "cka": "analyze measure=cka model=gpt2-mini",
    "mutual_knn": "analyze measure=mutual_knn model=gpt2-mini",
    "r2": "analyze measure=r2 model=gpt2-mini",
    "mlem": "analyze measure=mlem model=gpt2-mini",
    "rsa": "analyze measure=rsa model=gpt2-mini",
}


@pytest.mark.parametrize("job", with_ci_slow(JOBS, "linear", "paper", "rank", "cka", "mlem"))
def test_a_setting_that_is_taken_is_in_the_key(job):
    check_taken_settings_are_in_the_key(JOBS[job])


def columns(result) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(result.folder).iterdir() if path.suffix in (".csv", ".npz")}


@pytest.mark.slow
@pytest.mark.parametrize("job", ["linear", "low rank", "paper", "closed", "rank", "identity"])
def test_a_setting_of_a_stitch_that_is_taken_changes_a_number(job, cli, small_stitching):
    words = JOBS[job].split(" ")[1:]
    kind = {"closed": "closed", "rank": "closed", "identity": "identity"}.get(job)
    small = [*(untrained(small_stitching, kind) if kind else small_stitching), "layers=[[1,1]]"]
    plain, silent = columns(cli("train.py", *small, *words).result), []
    for key, value in settings(composed(*words)):
        value = {"stitch.clip": "1e-3"}.get(key, value)
        if not key.startswith("stitch."):
            continue
        line = [*(word for word in [*small, *words] if not word.startswith(f"{key}=")), f"{key}={value}"]
        done = cli("train.py", *line)
        if done.status == 0 and columns(done.result) == plain:
            silent.append(f"{key}={value}")
    assert silent == []
