"""The frame of every job: declared once, and key, lock, seed, state, provenance and result follow."""

import json
import logging
import math
import re
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import thinkalike
from conftest import ROOT, of_core
from key_checks import NEUTRAL, check_defaults, key_of_settings, leaves, outside_the_key
from thinkalike.config import (
    MEASURES,
    TASKS,
    AnalyzeConfig,
    DataConfig,
    ModelConfig,
    StimuliConfig,
    TrainConfig,
    TrainerConfig,
    measure_schema,
)
from thinkalike.config.values import key_settings
from thinkalike.errors import ConfigError, DataError, PluginError, ResourceError, ResultError, StoreError
from thinkalike.instruments import instrument
from thinkalike.job import Outcome, Work
from thinkalike.job.gathered_warnings import GatheredWarnings
from thinkalike.job.inputs import contents_of
from thinkalike.job.performing import perform
from thinkalike.processes import Interrupted
from thinkalike.store import seal, write_state
from thinkalike.training.recipe import StitchConfig
from toy_job import Config, Toy, ToyMeasure, config


def test_a_job_runs_is_drawn_shown_closed_and_appears(tmp_path, capsys):
    toy = Toy()
    result = perform(toy, config(tmp_path))
    assert toy.calls == ["run", "drawn", "closed"]
    assert capsys.readouterr().out == "3 numbers\n"
    assert result.folder.parent == tmp_path / "toy"
    assert [path.name for path in result.figures] == ["toy.svg"]
    assert (result.kind, result.settings, result.config["other"]) == ("toy", {}, None)
    np.testing.assert_array_equal(result.arrays["numbers"], torch.randn(3, generator=torch.manual_seed(0)).numpy())


def test_a_finished_job_is_not_done_again_unless_it_is_forced(tmp_path, caplog, monkeypatch):
    toy = Toy()
    first = perform(toy, config(tmp_path))
    monkeypatch.setattr("thinkalike.job.performing.versions_of", lambda _: {"torch": "99.0", "numpy": np.__version__})
    with caplog.at_level("INFO", logger="thinkalike"):
        assert perform(toy, config(tmp_path)).folder == first.folder
    assert f"toy of toy ({first.key}): already done; force=True does it again" in caplog.text
    assert f"it was computed with torch {torch.__version__} (now 99.0)" in caplog.text
    assert "numpy" not in caplog.text
    assert toy.calls.count("run") == 1
    perform(toy, config(tmp_path, force=True))
    assert toy.calls.count("run") == 2


@pytest.mark.parametrize("harm", ["versions", "table"])
def test_a_stored_result_that_lacks_what_is_shown_is_one_line(harm, tmp_path, capsys):
    class Wordy(Toy):
        def show(self, result) -> None:
            print(result.table["number"].sum())

    folder = perform(Wordy(), config(tmp_path), shown=False).folder
    if harm == "versions":  # which older results lack
        record = json.loads((folder / "result.json").read_text())
        del record["provenance"]["versions"]
        (folder / "result.json").write_text(json.dumps(record))
        seal(folder)
        assert perform(Wordy(), config(tmp_path), shown=False).folder == folder
        return
    (folder / "table.csv").write_text("other\n1\n")
    seal(folder)
    with pytest.raises(ResultError, match=r"lacks what toy shows .*force=True\Z"):
        perform(Wordy(), config(tmp_path))


def test_a_dry_run_has_no_result(tmp_path):
    toy = Toy()
    with pytest.raises(ConfigError, match="dry_run=true computes no result"):
        perform(toy, replace(config(tmp_path), dry_run=True))
    assert toy.calls == []
    assert not (tmp_path / "toy").exists()


def test_force_ignores_the_state_of_an_interrupted_run(tmp_path):
    with pytest.raises(DataError):
        perform(Toy(break_off=DataError("no more")), config(tmp_path))
    assert set(perform(Toy(), config(tmp_path, force=True)).table["start"]) == {0}


@pytest.mark.parametrize("status", [0, 5, None, "enough"])
def test_code_that_ends_the_process_leaves_no_job_that_looks_done(status, tmp_path):
    with pytest.raises(PluginError, match=rf"toy_job\.py, line \d+, called sys\.exit\({status}\) while the job ran"):
        perform(Toy(break_off=SystemExit(status)), config(tmp_path))
    assert perform(Toy(), config(tmp_path)).table is not None, "nothing of it is taken for a result"


class Broken(Toy, kind="broken", reads=("measure",), config=Config):
    """Computes what it is told to."""

    def __init__(self, **outcome):
        super().__init__()
        self.outcome = outcome

    def run(self, config, work):
        table = pd.DataFrame({"model": ["a", "b"], "layer": [0, 1], "value": [0.5, 0.25]})
        return Outcome(**{"table": table, "scalars": {}, **self.outcome})


ROWS = {"model": ["a", "b"], "layer": [0, 1]}


NOT_FINITE = {  # what the message says of where
    "the headline number mean came out as nan": {"scalars": {"mean": np.nan}},
    "value[1] (model=b, layer=1) came out as inf": {"table": pd.DataFrame({**ROWS, "value": [0.5, np.inf]})},
    "low[0] (model=a, layer=0) came out as nan": {"tables": {"more": pd.DataFrame({**ROWS, "low": [np.nan, 1.0]})}},
    "map[0, 1] came out as nan": {"arrays": {"map": np.array([[1.0, np.nan]])}},
    "came out as -inf": {"table": pd.DataFrame({**ROWS, "value": [0.5, -np.inf]}), "blank": ("value",)},
}


@pytest.mark.parametrize("said", NOT_FINITE)
def test_a_number_that_is_not_finite_is_never_stored(said, tmp_path):
    with pytest.raises(ResultError, match=f"{re.escape(said)}, .*and the measure if it is your own"):
        perform(Broken(**NOT_FINITE[said]), config(tmp_path / "store"))
    assert list(tmp_path.iterdir()) == []


def test_an_interval_without_ends_becomes_two_blank_cells(tmp_path):
    table = pd.DataFrame({**ROWS, "value": [0.5, 0.25], "low": [0.0, -np.inf], "high": [1.0, np.inf]})
    read = perform(Broken(table=table), config(tmp_path)).table
    assert read["low"].isna().tolist() == read["high"].isna().tolist() == [False, True]
    half = table.assign(high=[1.0, 2.0])
    with pytest.raises(ResultError, match=r"low\[1\] .* came out as -inf"):
        perform(Broken(table=half), config(tmp_path / "half"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), r"No space left on device: free some space"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "free some space"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "too little memory .*Tried to allocate",
        ),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "too little memory"),
    ],
)
def test_an_exhausted_machine_is_one_line_and_keeps_the_state(error, said, tmp_path):
    with pytest.raises(ResourceError, match=f"{said}.*rerun the command to resume from the last state"):
        perform(Toy(break_off=error), config(tmp_path))
    assert set(perform(Toy(), config(tmp_path)).table["start"]) == {2}


class Early(Toy, kind="early", reads=("measure",), config=Config):
    def run(self, config, work: Work) -> Outcome:
        raise Interrupted(15)


@pytest.mark.parametrize(
    ("toy", "after"), [(Toy(break_off=Interrupted(15)), " to resume"), (Early(), ", which begins again")]
)  # fmt: skip
def test_a_signal_says_whether_there_is_a_state(toy, after, tmp_path):
    with pytest.raises(Interrupted, match=f"^interrupted; rerun the command{after}"):
        perform(toy, config(tmp_path))


@pytest.mark.parametrize(
    ("effective", "low", "facts", "said"),
    [
        (8.6, 0.1, {}, "the intervals rest on 11 documents .effective sample size 8.6.: they are wide"),
        (8.6, 0.1, {"stimuli": {}}, "rest on 11 groups of stimuli .*; give more stimuli$"),
        (16.0, 0.1, {}, "^$"),
        (8.6, math.nan, {}, "^$"),
        (8.6, -math.inf, {}, "^$"),
        (7.9, math.nan, {}, "^11 documents .effective sample size 7.9. are too few for intervals, which need 8; read"),
        (7.9, -math.inf, {"stimuli": {}}, "^11 groups of stimuli .* are too few .*; give more stimuli$"),
    ],
)
def test_intervals_over_few_documents_say_so(effective, low, facts, said):
    table = pd.DataFrame({"value": [0.5, 0.5], "low": low, "name": "a"})
    scalars = {"documents": 11.0, "effective_sample_size": effective}
    assert re.search(said, Outcome(table, scalars, facts=facts).why_intervals_say_little)


@pytest.mark.parametrize(("count", "said"), [(14, "the intervals rest on"), (60, "")])
def test_few_documents_have_one_warning(count, said, caplog):
    texts = [f"The {number}. page of a book is read by the {number}. reader. " * 8 for number in range(count)]
    thinkalike.loss("gelu-3l-mini", texts=texts, context=64, evaluation_share=0.9)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    warnings = [warning for warning in warnings if "of one source" not in warning]  # these are alike, too
    assert len(warnings) == bool(said), warnings
    assert all(re.search(said, warning) for warning in warnings)


def test_a_second_process_waits_for_the_firsts_result(tmp_path, caplog, monkeypatch):
    first, began = Toy(), threading.Event()
    slow = first.run

    def run(settings, work):
        began.set()
        time.sleep(0.5)
        return slow(settings, work)

    monkeypatch.setattr(first, "run", run)
    other = threading.Thread(target=perform, args=(first, config(tmp_path)))
    other.start()
    assert began.wait(20)
    second = Toy()
    with pytest.raises(StoreError, match=r"another process is computing .*wait=true"):
        perform(second, config(tmp_path, wait=False))
    with caplog.at_level("INFO", logger="thinkalike"):
        result = perform(second, config(tmp_path))
    other.join()
    assert (first.calls.count("run"), second.calls) == (1, [])
    assert len(result.table) == 3
    assert "waiting for another process, which is computing" in caplog.text
    assert not list(tmp_path.glob("toy/*.partial"))


def test_the_seed_decides_the_numbers_and_the_key(tmp_path):
    first, again, other = (perform(Toy(), config(tmp_path / str(i), seed=s)) for i, s in enumerate((1, 1, 2)))
    assert first.key == again.key != other.key
    assert first.table.equals(again.table)
    assert not first.table.equals(other.table)


def test_the_key_is_of_what_the_job_reads(tmp_path):
    plain = perform(Toy(), config(tmp_path)).key
    assert perform(Toy(), config(tmp_path, other=ToyMeasure(size=9))).key == plain, "it does not read this part"
    assert perform(Toy(), config(tmp_path, threads=1)).key == plain
    assert perform(Toy(), config(tmp_path, measure=ToyMeasure(size=4))).key != plain
    assert perform(Toy("another text"), config(tmp_path)).key != plain


def test_a_schema_that_grows_finds_its_old_results(tmp_path):
    """The one way to add a setting: optional, with the default that there was without it."""

    @dataclass
    class Grown(ToyMeasure):
        extra: str | None = None
        more: list = field(default_factory=list)

    before = perform(Toy(), config(tmp_path, measure=ToyMeasure(size=5)))
    toy = Toy()
    assert perform(toy, config(tmp_path, measure=Grown(size=5))).folder == before.folder
    assert toy.calls == []
    assert perform(toy, config(tmp_path, measure=Grown(size=5, extra="used"))).key != before.key


def test_a_state_holds_nothing_that_could_run_code(tmp_path):
    with pytest.raises(DataError):
        perform(Toy(break_off=DataError("no more")), config(tmp_path))
    (state,) = tmp_path.glob("toy/*.partial/checkpoints")
    write_state(state, "half", {"done": Path("x")})  # a class of Python, which weights_only refuses
    with pytest.raises(StoreError, match="holds no state of a job"):
        perform(Toy(), config(tmp_path))


@pytest.mark.parametrize(
    ("entries", "message"),
    [({}, "has no done"), ({"done": "two"}, "has done of type str, and the job resumes from int")],
)
def test_a_state_that_lacks_what_a_job_resumes_from_is_named(entries, message, tmp_path):
    with pytest.raises(DataError):
        perform(Toy(break_off=DataError("no more")), config(tmp_path))
    (state,) = tmp_path.glob("toy/*.partial/checkpoints")
    path = write_state(state, "half", entries)
    with pytest.raises(StoreError, match=f"^{re.escape(str(path))} {message}.*; remove it$"):
        perform(Toy(), config(tmp_path))
    write_state(state, "half", {"done": 2})
    assert perform(Toy(), config(tmp_path)).table["start"].eq(2).all(), "control"


@pytest.mark.parametrize("left", ["null", "", "[1]", "{", '{"a": 1}', "\ud800".encode(errors="surrogatepass")])
def test_warnings_that_cannot_be_read_end_no_job(left, tmp_path, caplog):
    with pytest.raises(DataError):
        perform(Toy(break_off=DataError("no more")), config(tmp_path))
    (states,) = tmp_path.glob("toy/*.partial/checkpoints")
    (states / "warnings.json").write_bytes(left if isinstance(left, bytes) else left.encode())
    assert perform(Toy(), config(tmp_path)).scalars
    assert "goes on without them" in caplog.text


def test_warnings_of_a_stopped_run_cannot_write_on_a_terminal(tmp_path, caplog):
    with pytest.raises(DataError):
        perform(Toy(break_off=DataError("no more")), config(tmp_path))
    (states,) = tmp_path.glob("toy/*.partial/checkpoints")
    (states / "warnings.json").write_text(json.dumps(["\x1b[2J few\nresults: /elsewhere"]))
    perform(Toy(), config(tmp_path))
    assert "few results: /elsewhere" in caplog.text
    assert "\x1b" not in caplog.text


def test_what_is_opened_is_closed_also_when_a_job_fails(tmp_path):
    toy = Toy(break_off=DataError("no more"))
    with pytest.raises(DataError):
        perform(toy, config(tmp_path))
    assert toy.calls == ["run", "closed"]


class HalfRead(Toy, kind="half read", reads=("measure", "seed"), config=Config):
    """Reads the size of its measure with the seed 0 alone."""

    def unread(self, config):
        return {"measure.size": 3} if config.seed else {}


@pytest.mark.parametrize("same", [{"devices": 1}, {"num_nodes": 1}, {"devices": 1, "precision": "32-true"}])
def test_one_process_has_one_key_however_it_is_written(same):
    def key(**settings):
        return key_settings(TrainerConfig(**settings))

    assert key(**same) == key() == {}
    assert key(strategy="ddp", devices=2) != key(strategy="ddp", devices=3), "control"


def test_what_a_job_does_not_read_changes_no_key():
    def made(size, seed):
        return Config(measure=ToyMeasure(size=size), seed=seed)

    kind = HalfRead()
    assert "measure.size" in kind.settings_read(made(5, seed=0))
    assert "measure.size" not in kind.settings_read(made(5, seed=1))
    assert kind.key_settings(made(5, seed=1)) == kind.key_settings(made(6, seed=1)) == {"seed": 1}
    assert kind.key_settings(made(5, seed=0)) == {"measure": {"size": 5}}, "control"


@pytest.mark.parametrize("root", [TrainConfig, AnalyzeConfig])
def test_every_setting_is_in_the_key_unless_declared_neutral(root):
    core = {name for _, _, name in leaves(root(model=ModelConfig(), target=ModelConfig()))}
    shared = {name for name in core if name.startswith("trainer.")} if root is AnalyzeConfig else set()
    assert outside_the_key(root) & core == (NEUTRAL & core) | shared


def test_every_instrument_has_a_kind_of_its_own():
    made = [instrument(module) for module in (*TASKS.values(), *MEASURES.values())]
    assert len({each.kind for each in made}) == len(TASKS) + len(MEASURES)
    for kind, module in MEASURES.items():
        assert measure_schema(kind).kind == kind == instrument(module).kind
    for each in made:
        assert each.reads
        assert each.__doc__


# The defaults do not enter a key: one that changes gives old results to new settings, unless the version is raised.
DEFAULTS = ROOT / "tests" / "defaults.json"


def test_no_default_has_changed_without_a_word():
    """One that must change: raise the version of the kinds that read it, then write the new one into defaults.json."""
    schemas = (DataConfig, ModelConfig, StimuliConfig, TrainerConfig, StitchConfig)
    check_defaults(DEFAULTS, schemas, of_core(MEASURES))


KEYS = ROOT / "tests" / "keys.json"


@pytest.mark.parametrize("line", json.loads(KEYS.read_text()))
def test_stored_results_are_found_by_their_keys(line):
    """A key that changes means that a finished job is done again: then the version of its kind is raised, too."""
    assert key_of_settings(line) == json.loads(KEYS.read_text())[line]


def test_the_provenance_says_what_computed_it_when_and_where(tmp_path):
    before = datetime.now(UTC)
    record = perform(Toy(), config(tmp_path, seed=3)).provenance
    assert (record["seed"], record["models"]) == (3, [{"name": "toy"}])
    assert record["inputs"] == contents_of(Toy().inputs(config(tmp_path)))
    assert {"thinkalike", "torch", "transformers", "numpy"} <= set(record["versions"])
    assert record["versions"]["numpy"] == np.__version__
    assert 1e7 < record["peak_memory_bytes"] < 1e13
    assert record["threads"] >= 1
    made = datetime.fromisoformat(record["date"])
    assert before - timedelta(seconds=1) <= made <= datetime.now(UTC)
    assert made.utcoffset() == timedelta(0)
    assert record["host"] == socket.gethostname()
    assert list(record["phases"]) == ["computing", "drawing"]
    assert 0 <= sum(record["phases"].values()) <= record["wall_seconds"] + 0.1 < 60


def test_a_repeated_warning_shows_once_where_logging_is_not_set_up(monkeypatch, capsys):
    """As in a notebook: no handler is there, and logging prints by its last resort."""
    monkeypatch.setattr(logging.root, "handlers", [])
    log = logging.getLogger("thinkalike.instruments")
    with GatheredWarnings():
        for text in ("warning: few documents", "warning: few documents", "warning: few words", "a note", "a note"):
            log.warning(text)
    printed = capsys.readouterr().err.splitlines()
    assert printed == ["warning: few documents", "warning: few words", "a note", "a note"]
