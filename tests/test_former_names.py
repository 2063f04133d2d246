"""Renamed settings: the former name is refused with the present one, and what an earlier version stored is read."""

import dataclasses
import json

import pytest
import yaml

import thinkalike as ta
from conftest import composed, every_second
from thinkalike.catalogue import TASKS
from thinkalike.config import MEASURES, AnalyzeConfig, TrainConfig, instrument, measure_schema
from thinkalike.config.groups import GROUPS, config_schema_of, schema_of_group
from thinkalike.errors import ConfigError
from thinkalike.former_names import FORMER_NAMES, FORMER_VALUES, PRESENT_NAMES, with_former_names, with_present_names
from thinkalike.job.lookup import instrument_of
from thinkalike.jobs import Loss
from thinkalike.store import open_result, seal

TEXTS = ["The cat sat on the mat."] * 4
FORMER_WORDS = [
    ("train", "data.report_tokens=5", "'data.report_tokens' is now data.evaluation_tokens"),
    ("train", "data.report_share=0.5", "'data.report_share' is now data.evaluation_share"),
    ("train", "recipe=honest", "recipe=honest is now recipe=default"),
    ("analyze", "measure=cka measure.level=word", "'measure.level' is now measure.unit"),
    ("analyze", "measure=cka measure.given=token", "'measure.given' is now measure.conditional_on"),
    ("analyze", "measure=mlem measure.given=PoS", "'measure.given' is now measure.conditional_on"),
    ("analyze", "measure=ruler measure.rungs=[bits]", "'measure.rungs' is now measure.calibration_points"),
    ("analyze", "measure=lineage measure.likeness=false", "'measure.likeness' is now measure.similar_units"),
    ("analyze", "measure=diff measure.null=drift", "measure.null=drift is now measure.null=continued_training"),
    (
        "analyze",
        "measure=diff measure.null=perturbation",
        "measure.null=perturbation is now measure.null=random_change",
    ),
]
FORMER_KEYWORDS = {
    "report_tokens": lambda: Loss("gelu-3l-mini", report_tokens=2048),
    "report_share": lambda: ta.stitch("gelu-3l-mini", report_share=0.5),
    "level": lambda: ta.compare("gelu-3l-mini", level="word"),
    "given": lambda: ta.mlem("gpt2-mini", given="PoS"),
}


def every_schema():
    yield from (TrainConfig, AnalyzeConfig)
    yield from (schema_of_group(group) for group in GROUPS)
    yield from (config_schema_of(instrument(entry)) for entry in TASKS.values())
    yield from (measure_schema(kind) for kind in MEASURES)


@pytest.mark.parametrize(("entry", "words", "message"), every_second(FORMER_WORDS))
def test_a_command_line_with_a_former_name_is_refused_with_the_present_one(entry, words, message):
    with pytest.raises(ConfigError) as caught:
        composed(*words.split(), entry=entry)
    assert str(caught.value) == message


def test_a_file_with_a_former_name_is_refused_with_the_present_one(cli, tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [train, _self_]\ndata: {report_tokens: 4096}\n")
    done = cli("train.py", f"--config-dir={tmp_path}", "--config-name=mine", "dry_run=true")
    assert done.status == 1
    assert "'data.report_tokens' is now data.evaluation_tokens" in done.stderr


@pytest.mark.parametrize("name", FORMER_KEYWORDS)
def test_a_former_keyword_is_refused_with_the_present_one(name):
    with pytest.raises(ConfigError, match=f"^{name}= is now {PRESENT_NAMES[name]}=$"):
        FORMER_KEYWORDS[name]()


def test_a_former_value_is_refused_as_a_keyword():
    with pytest.raises(ConfigError, match=r"^recipe=honest is now recipe=default$"):
        ta.stitch("gelu-3l-mini", recipe="honest", texts=TEXTS)


def test_a_name_that_no_setting_ever_had_is_no_former_name():
    with pytest.raises(TypeError, match="unexpected keyword argument 'levels'"):
        ta.compare("gelu-3l-mini", levels="word")
    with pytest.raises(TypeError, match="unexpected keyword argument 'rungs'"):
        ta.compare("gelu-3l-mini", rungs=["bits"])  # compare never had it


def test_no_schema_has_a_former_name_and_each_present_one_is_a_setting():
    declared = {item.name for schema in every_schema() for item in dataclasses.fields(schema)}
    assert declared & set(PRESENT_NAMES) == set()
    assert set(FORMER_NAMES) <= declared
    assert set(FORMER_VALUES) <= declared


def test_the_key_has_the_former_names():
    words = ["measure=cka", "measure.unit=word", "measure.conditional_on=token", "model=gelu-3l-mini"]
    config = composed(*words, entry="analyze")
    entered = instrument_of(config).key_settings(config)["measure"]
    assert (entered["level"], entered["given"]) == ("word", "token")
    assert not {"unit", "conditional_on"} & set(entered)

    config = composed("measure=diff", "measure.null=continued_training", "model=gelu-3l-mini", entry="analyze")
    assert instrument_of(config).key_settings(config)["measure"]["null"] == "drift"


@pytest.mark.ci_slow
def test_settings_of_an_earlier_version_are_read_under_the_present_names(tmp_path, cli):
    """The result of a job has the former names put into its files, as an earlier version wrote them."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Line {number} of a text." * 40 for number in range(60)))
    words = [
        "measure=loss",
        "data=text",
        f"data.files=[{text}]",
        "data.evaluation_tokens=1024",
        "data.evaluation_share=0.4",
    ]
    done = cli("analyze.py", *words, "data.context=32", f"store={tmp_path}/store")
    assert done.status == 0, done.stderr
    now = open_result(done.stdout.splitlines()[-1].removeprefix("results: "))
    assert (now.settings["data"]["evaluation_tokens"], now.config["data"]["evaluation_share"]) == (1024, 0.4)

    record = json.loads((now.folder / "result.json").read_text())
    record["settings"] = with_former_names(record["settings"])
    assert record["settings"]["data"]["report_tokens"] == 1024, "control"
    (now.folder / "result.json").write_text(json.dumps(record))
    config = with_former_names(yaml.safe_load((now.folder / "config.yaml").read_text()))
    (now.folder / "config.yaml").write_text(yaml.safe_dump(config))
    seal(now.folder)

    read = open_result(now.folder)
    assert (read.settings, read.config) == (now.settings, now.config)
    again = cli("analyze.py", *words, "data.context=32", f"store={tmp_path}/store")
    assert again.status == 0
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    assert json.loads((now.folder / "result.json").read_text()) == record, "the job was not done again"


def test_settings_are_renamed_within_their_parts_alone():
    settings = {
        "recipe": "default",
        "measure": {"unit": "word", "null": True},
        "stimuli": {"kinds": {"unit": "nominal"}},
    }
    former = {"recipe": "honest", "measure": {"level": "word", "null": True}, "stimuli": {"kinds": {"unit": "nominal"}}}
    assert with_former_names(settings) == former
    assert with_present_names(former) == settings
    assert with_present_names(settings) == settings
