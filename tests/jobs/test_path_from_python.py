"""The path from Python: a job is an object, and without a store nothing is composed by Hydra, written or read back."""

import json
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import compose
from omegaconf import OmegaConf

import thinkalike
import tiny
from conftest import ROOT
from thinkalike import Compare, Diff, Job, Loss, Mlem, Rsa, Trajectory, jobs, load_model, run
from thinkalike.config import options
from thinkalike.config.compose import hydra_ready
from thinkalike.config.groups import option
from thinkalike.errors import ConfigError, DataError, ModelError, StoreError
from thinkalike.models.load import load_tokenizer

SRC = Path(thinkalike.__file__).parents[1]
FEW = {"batches": 2, "tokens_per_batch": 128}
STATES, OTHERS = (np.random.default_rng(seed).normal(size=(12, 4)) for seed in range(2))
WATCHED = """
import json, os, sys, traceback
import matplotlib.pyplot, numpy, pandas, torch, transformers  # which make folders of their own
import thinkalike as ta
import tiny
from function_calls import FRAME, TEXTS
from thinkalike.measures import metric

cache, written, stacks = os.environ["THINKALIKE_CACHE"], [], []
CHANGES = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.truncate")


def watch(event, arguments):
    is_written = event in CHANGES
    if event == "open" and arguments[2] is not None:
        is_written = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    path = str(arguments[0]) if is_written else ""
    if path and not path.startswith((cache, "/dev/")) and not path.endswith(".pyc") and "__pycache__" not in path:
        written.append([event, path])


def update(self, *states, **named):
    stacks.append([frame.filename for frame in traceback.extract_stack() if "/thinkalike/" in frame.filename])
    return updated(self, *states, **named)


updated, metric.CKA.update = metric.CKA.update, update
few = {"batches": 2, "tokens_per_batch": 128}
states = numpy.random.default_rng(0).normal(size=(12, 4))
profiles = {"folds": 2, "references": 0, "permutations": 2, "together": "stimulus"}
loaded = ta.load_model("gelu-3l-mini")
for step in (1, 2):
    tiny.write_checkpoint("gpt2", __import__("pathlib").Path("run") / f"step{step}", seed=step)
calls = {
    "compare": lambda: ta.compare("gelu-3l-mini", "solu-3l-mini", texts="pydoc", **few),
    "in memory": lambda: ta.compare(loaded, texts=TEXTS, **few),
    "arrays": lambda: ta.compare(states, {"low": states}),
    "function": lambda: ta.compare(states, states, measure=lambda x, y: 0.5),
    "stitch": lambda: ta.stitch(loaded, layers=[1], steps=3, tokens_per_step=256, evaluation_tokens=2048, texts=TEXTS,
                                evaluation_share=0.5),
    "mlem": lambda: ta.mlem("gpt2-mini", stimuli=FRAME, **profiles),
    "rsa": lambda: ta.rsa([states, "gpt2-mini"], stimuli=FRAME),
    "diff": lambda: ta.diff(loaded, "gelu-3l-mini", texts="pydoc", tokens=128, tokens_per_part=64),
    "trajectory": lambda: ta.trajectory("run", tokens=256, folds=2, permutations=19, least=2, importance=False,
                                        sample=60, texts=TEXTS),
}
sys.addaudithook(watch)
for name, call in calls.items():
    result = call()
    result._repr_html_()
    found = {"written": [*written], "hydra": [name for name in ("hydra", "omegaconf") if name in sys.modules]}
    print("FOUND", json.dumps({name: found}))
    written.clear()
open("control", "w").close()
print("FOUND", json.dumps({"control": {"written": [*written], "hydra": []}}))
print("FOUND", json.dumps({"stack": stacks[0]}))
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """What a fresh process wrote and imported in each call, and the frames of ours at the first update of CKA."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "cache").mkdir()
    environment = {**os.environ, "THINKALIKE_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [SRC, ROOT / "tests", ROOT / "tests" / "helpers"]))
    ran = subprocess.run([sys.executable, "-c", WATCHED], cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = {}
    for line in ran.stdout.splitlines():
        if line.startswith("FOUND "):
            found |= json.loads(line.removeprefix("FOUND "))
    return found


CALLS = ["compare", "in memory", "arrays", "function", "stitch", "mlem", "rsa", "diff", "trajectory"]


@pytest.mark.ci_slow
@pytest.mark.timeout(900)
def test_without_a_store_nothing_is_written_but_caches(watched):
    assert {name: watched[name]["written"] for name in CALLS} == {name: [] for name in CALLS}
    assert watched["control"]["written"] == [["open", "control"]]


@pytest.mark.ci_slow
@pytest.mark.timeout(900)
def test_no_call_imports_hydra(watched):
    assert {name: watched[name]["hydra"] for name in CALLS} == {name: [] for name in CALLS}


@pytest.mark.ci_slow
@pytest.mark.timeout(900)
def test_a_comparison_reaches_its_accumulator_in_few_frames(watched):
    stack = watched["stack"]
    assert 0 < len(stack) <= 12
    assert len(set(stack)) <= 9


@pytest.mark.ci_slow
def test_options_are_those_that_hydra_composes():
    """Of each group, but for measures, which are no files, and references, which are resolved at once."""
    different = []
    for group in ("model", "data", "stitch", "stimuli", "trainer", "logger"):
        names = [*options(group), *(["schema", "some/one"] if group in ("model", "data") else [])]
        words = [f"+{group}@option{number}='{name}'" for number, name in enumerate(names)]
        with hydra_ready():  # all at once, as one composition takes little longer than that of a single option
            composed = OmegaConf.to_container(compose(None, words), resolve=False)
        for number, name in enumerate(names):
            if option(group, name) != composed[f"option{number}"] and name != "feather-bert":
                different.append((group, name))
    assert different == []
    assert option("model", "gpt2") != option("model", "gpt2-mini"), "control"


def test_a_job_is_frozen_and_checked_when_it_is_made():
    job = Compare(STATES, OTHERS, kernel=np.array("rbf"))
    assert job.settings() == {"kernel": "rbf"}
    with pytest.raises(FrozenInstanceError):
        job.kernel = "linear"
    for make, said in (
        (lambda: Compare(STATES, neighbours="5"), "^neighbours='5' must be a whole number"),
        (lambda: Mlem([STATES], OTHERS), "^target= has no effect beside a list"),
        (lambda: Rsa(STATES, stimuli="crossed"), "^rsa on stimuli takes one list"),
        (lambda: Rsa([None], stimuli="crossed"), r"^models\[0\] is NoneType"),
        (lambda: Diff("gpt2", 3), "^changed is int"),
        (lambda: Loss("a\0b"), "^model='a.x00b' must be a path"),
        (lambda: Trajectory("run", steps=range(2**40)), "^steps holds 1,099,511,627,776 values"),
        (lambda: jobs.Stitch("gpt2", force="yes"), "^force='yes' must be True or False"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()


def test_a_function_runs_its_job(tmp_path):
    job = Compare(STATES, OTHERS)
    assert isinstance(job, Job)
    found = thinkalike.compare(STATES, OTHERS)
    pd.testing.assert_frame_equal(run(job).table, found.table)
    kept = run(job, store=tmp_path / "kept")
    assert (kept.key, kept.is_kept) == (found.key, True)
    pd.testing.assert_frame_equal(kept.table, found.table, check_exact=True)
    assert run(Compare(STATES, OTHERS, store=tmp_path / "kept")).folder == kept.folder
    before = kept.provenance["date"], (kept.folder / "result.json").stat().st_ino
    again = run(job, store=tmp_path / "kept")
    assert (again.provenance["date"], (again.folder / "result.json").stat().st_ino) == before
    run(job, store=tmp_path / "kept", force=True)
    assert (kept.folder / "result.json").stat().st_ino != before[1]


def test_the_loss_is_a_job():
    result = run(Loss("gelu-3l-mini", texts=[tiny.document(seed, 60) for seed in range(60)], evaluation_tokens=1024))
    assert result.kind == "loss"
    assert result.scalars["loss"] > 0


def test_a_saved_result_is_whole_and_nothing_is_left_of_one_that_cannot_be_written(tmp_path, monkeypatch):
    result = thinkalike.compare(
        load_model("gelu-3l-mini"), texts=[tiny.document(seed, 60) for seed in range(60)], **FEW
    )
    saved = result.save(tmp_path / "mine")
    assert {path.name for path in saved.folder.glob("*")} >= {
        "result.json",
        "table.csv",
        "config.yaml",
        "manifest.json",
    }
    with pytest.raises(StoreError, match="exists already"):
        result.save(tmp_path / "mine")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("thinkalike.unkept.write_content", full)
    with pytest.raises(StoreError, match="cannot be saved"):
        result.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_result_of_a_relative_store_is_read_after_the_working_folder_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = thinkalike.compare(STATES, OTHERS, store="results")
    assert str(result).splitlines()[-1].startswith("results: results/cka/"), "as it was given"
    other_folder = tmp_path / "elsewhere"
    other_folder.mkdir()
    result = thinkalike.compare(STATES, OTHERS, store="results")  # nothing of it was read so far
    monkeypatch.chdir(other_folder)
    assert len(result.table) == 3
    assert result.arrays
    assert result.plot() is not None
    assert str(result).splitlines()[-1].startswith(f"results: {tmp_path / 'results'}/cka/")
    assert len(result.save("copy").details) == 3


@pytest.mark.parametrize("is_stored", [False, True])
def test_changing_what_a_result_gave_changes_nothing_of_it(tmp_path, is_stored):
    result = thinkalike.compare(STATES, OTHERS, store=tmp_path if is_stored else None)
    value = float(result.table["value"].iloc[0])
    summary = result.summary
    fingerprint = result.fingerprint()
    for table in (result.table, result.details, *result.tables.values()):
        table.loc[:, "value"] = 0.0
    for array in result.arrays.values():
        array[...] = 0
    for numbers in (result.scalars, result.settings, result.provenance, result.config):
        numbers.clear()
    for entries in (result.arrays, result.tables):
        with pytest.raises(TypeError):
            entries["value"] = None
    result.files.clear()
    result.config["measure"]["kernel"] = "changed"
    result.provenance["models"][0]["name"] = "changed"
    assert result.summary == summary
    assert result.fingerprint() == fingerprint
    for table in (result.table, result.details, result.tables["table"]):
        assert table["value"].iloc[0] == value
    assert result.arrays["value"].any()
    saved = result.save(tmp_path / "copy")
    assert saved.details["value"].iloc[0] == value
    assert saved.arrays["value"].any()


IDS = [f"picture {number}" for number in range(12)]
WITH_IDS = pd.DataFrame({"id": IDS, "A": [*"xy"] * 6, "B": [*"pqq"] * 4})
LABELLED = pd.DataFrame(np.arange(36.0).reshape(12, 3), index=IDS)
REVERSED = LABELLED.iloc[::-1]
REFUSED = r'the ids of stimuli in another order.*give {}.loc\[stimuli\["{}"\]\]'


@pytest.mark.parametrize(
    ("make", "argument", "column"),
    [
        (lambda table: Mlem(REVERSED, stimuli=table), "model", "id"),
        (lambda table: Mlem({"a": REVERSED}, stimuli=table), r"model\['a'\]", "id"),
        (lambda table: Mlem(LABELLED, REVERSED, stimuli=table), "target", "id"),
        (lambda table: Rsa([LABELLED, REVERSED], stimuli=table), r"models\[1\]", "id"),
        (lambda table: Compare(REVERSED, "gpt2-mini", stimuli=table), "source", "id"),
        (
            lambda table: Mlem(REVERSED, stimuli=table.rename(columns={"id": "name"}), columns={"id": "name"}),
            "model",
            "name",
        ),
    ],
)
def test_states_whose_labels_are_ids_in_another_order_are_refused(make, argument, column):
    with pytest.raises(ConfigError, match=REFUSED.format(argument, column)):
        make(WITH_IDS)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_ids_in_a_file_of_stimuli_are_compared_with_labels_as_well(tmp_path, ending):
    path = tmp_path / f"table.{ending}"
    if ending == "parquet":
        WITH_IDS.to_parquet(path)
    else:
        WITH_IDS.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    Mlem(LABELLED, stimuli=path)
    Mlem(REVERSED.to_numpy(), stimuli=path)
    with pytest.raises(ConfigError, match=REFUSED.format("model", "id")):
        Mlem(REVERSED, stimuli=path)


def test_ids_say_nothing_of_rows_that_are_counted_and_all_of_rows_that_they_name():
    numbers = [*range(11, -1, -1)]
    table = WITH_IDS.assign(id=numbers)
    Mlem(LABELLED.reset_index(drop=True), stimuli=table)
    Mlem(LABELLED.set_axis([str(number) for number in numbers]), stimuli=table)
    Mlem(LABELLED, stimuli=WITH_IDS)
    Mlem(REVERSED, stimuli=WITH_IDS, columns={"id": None})
    with pytest.raises(ConfigError, match="in another order"):
        Mlem(LABELLED.set_axis([*numbers[6:], *numbers[:6]]), stimuli=table)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Diff("gelu-3l-mini", None), "changed is NoneType: give a name"),
        (lambda: Diff(None, "gelu-3l-mini"), "base is NoneType: give a name"),
        (lambda: jobs.Lineage("gelu-3l-mini", None), "target is NoneType: give a name"),
        (lambda: jobs.Loss(None), "model is NoneType: give a name"),
        (lambda: Rsa([STATES], stimuli=None), "stimuli is None, and rsa needs it: give a value"),
    ],
)
def test_none_does_not_stand_for_an_argument_that_is_required(make, argument):
    """A second model of None was the first one, which of course was equal to itself."""
    with pytest.raises(ConfigError, match=argument):
        make()


def test_none_stands_for_a_second_side_that_may_be_left_out():
    assert Compare("gelu-3l-mini", None).sides()["target"] == "gelu-3l-mini"


def test_a_trajectory_of_a_folder_that_is_not_there_says_so(tmp_path):
    with pytest.raises(ModelError, match=r"the folder .*nowhere is not there"):
        thinkalike.trajectory(tmp_path / "nowhere")


@pytest.mark.parametrize("missing", ["drop", "ignore"])
def test_a_feature_of_one_level_beside_missing_values_is_refused_before_the_work(missing):
    texts = [f"text {number}" for number in range(60)]
    table = pd.DataFrame({"text": texts, "B": [*"pqq"] * 20, "plural": ["yes", None] * 30})
    states = np.arange(180.0).reshape(60, 3)
    with pytest.raises(DataError, match=f"plural has one level only, yes where missing .*missing={missing}"):
        thinkalike.mlem(states, stimuli=table, missing=missing, references=0)


@pytest.mark.parametrize("name", [".", "./tokenizer", ".."])
def test_a_relative_tokenizer_of_states_is_not_looked_for_in_the_current_folder(tmp_path, monkeypatch, name):
    current = tmp_path / "current"
    for folder in (current, current / "tokenizer", tmp_path / "beside"):
        folder.mkdir()
        if folder.name != "beside":
            (folder / "config.json").write_text("{}")
    states = tmp_path / "beside" / "states"
    states.mkdir()
    monkeypatch.chdir(current)
    with pytest.raises(ModelError, match="has no files of a tokenizer"):
        load_tokenizer(name, beside=states)


def test_the_path_from_a_folder_of_states_to_a_tokenizer_is_told(tmp_path, monkeypatch):
    for folder in ("model", "states"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"begins at states, .* such as \.\./model"):
        load_tokenizer("./model", beside=Path("states"))


@pytest.mark.parametrize("ending", ["pt", "mat", "csv", "pkl", "parquet", "txt"])
def test_a_file_that_holds_neither_states_nor_a_model_is_refused_by_its_ending(tmp_path, ending):
    path = tmp_path / f"states.{ending}"
    path.write_bytes(b"x")
    with pytest.raises(ConfigError, match=rf"source is .*states\.{ending}, a file that is not read.*\.npy"):
        Compare(str(path), LABELLED)
