"""Results appear whole or not at all; their headlines are those of their tables; and lists of them."""

import contextlib
import io
import json
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import thinkalike
from conftest import with_slow
from planted_headlines import TABLE, of
from stores import finish
from thinkalike import open_result
from thinkalike.cli import main
from thinkalike.errors import (
    ConfigError,
    DataError,
    ResultError,
    StoreError,
    TrainingError,
    plain,
)
from thinkalike.listing import Query, search, selected, show_sweep
from thinkalike.listing.frames import FIXED_COLUMNS
from thinkalike.measures import bootstrap_interval, fold_interval
from thinkalike.processes import locked
from thinkalike.report.reports import gather, report_of
from thinkalike.store import (
    Headline,
    Result,
    StoredJob,
    copies,
    first_scalar,
    newest_state,
    read_state,
    seal,
    write_state,
)

CONFIG = {"model": {"name": "tiny"}, "seed": 3, "layers": [[0, 0]], "nothing": None}


def job(store: Path, key: str = "abc", kind: str = "stitching") -> StoredJob:
    return StoredJob(str(store), kind, key)


def write(work: StoredJob, penalty: float = 0.5, tables=None, arrays=None) -> None:
    provenance = {"seed": 3, "models": [{"name": "tiny"}]}
    record = {"scalars": {"penalty": penalty}, "settings": {"seed": 3}, "provenance": provenance}
    record["headlines"] = [{"name": "penalty", "value": penalty}]
    work.write(CONFIG, record, {"table": TABLE, **(tables or {})}, arrays or {})


def done(store: Path, key: str = "abc", penalty: float = 0.5, **more) -> Path:
    work = job(store, key)
    with work.running():
        write(work, penalty, **more)
        return work.appear().folder


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_tables_and_arrays_are_copied_one_by_one_and_stay_as_they_were(tmp_path, monkeypatch):
    tables = dict.fromkeys(("first", "second", "third"), TABLE[:1])
    result = Result(done(tmp_path, tables=tables, arrays={"curve": np.arange(3.0), "other": np.arange(2.0)}))
    assert set(result.tables) == {"table", *tables}
    copied = []
    copy_of_value = copies.copy_of_value
    monkeypatch.setattr(copies, "copy_of_value", lambda value: copied.append(value) or copy_of_value(value))
    assert sum(len(result.tables[name]) for name in result.tables) == len(TABLE) + 3
    assert len(copied) == len(result.tables), "each table once, and not all of them for each"

    table = result.tables["first"]
    table.iloc[0, 0] = 99
    result.arrays["curve"][0] = 99
    pd.testing.assert_frame_equal(result.tables["first"], TABLE[:1])
    assert result.arrays["curve"].tolist() == [0, 1, 2]
    with pytest.raises(TypeError):
        result.tables["first"] = table


@pytest.mark.parametrize(
    "names", [("1.10", "1.1"), ("100", "1e2"), ("True", "False"), ("nan", "None"), ("0.1", "0.10")]
)
def test_names_that_look_like_numbers_or_blanks_stay_texts(tmp_path, names):
    table = pd.DataFrame({"model": names, "value": [0.5, 1.0]})
    result = Result(done(tmp_path, tables={"named": table}))
    pd.testing.assert_frame_equal(result.tables["named"], table, check_dtype=False)
    assert result.columns_of("named.csv").rows() == [(names[0], 0.5), (names[1], 1.0)]
    pd.testing.assert_frame_equal(result.save(tmp_path / "copy").tables["named"], table, check_dtype=False)


def test_a_result_appears_whole_and_only_when_it_is_complete(tmp_path):
    work = job(tmp_path)
    partial = work.partial
    with work.running():
        assert not work.folder.exists()
        assert not work.done
        (work.aside / "own.txt").write_text("a job's own file")
        (partial / "curves").mkdir()
        (partial / "curves" / "metrics.csv").write_text("step,loss")
        assert not work.folder.exists(), "what is written aside is not there yet"
        write(work, arrays={"curve": np.arange(3.0)})
        assert not work.folder.exists(), "what is written aside is not there yet"
        folder = work.appear().folder
    assert folder == work.folder == tmp_path / "stitching" / "abc"
    assert work.done
    assert not work.partial.exists()
    files = ["arrays.npz", "config.yaml", "curves", "curves/metrics.csv", "manifest.json", "own.txt", "result.json"]
    files += ["table.csv"]
    assert everything(folder) == files
    assert everything(tmp_path) == ["stitching", "stitching/abc", *(f"stitching/abc/{name}" for name in files)]


def test_what_was_put_in_comes_out(tmp_path):
    arrays = {"curve": np.arange(3.0), "sums": np.ones((2, 2))}
    result = open_result(done(tmp_path, arrays=arrays, tables={"scores": TABLE[:1]}))
    assert (result.kind, result.key, result.scalars) == ("stitching", "abc", {"penalty": 0.5})
    assert (result.config, result.settings, result.provenance["seed"]) == (CONFIG, {"seed": 3}, 3)
    pd.testing.assert_frame_equal(result.details, TABLE)
    assert list(result.tables) == ["scores", "table"]
    pd.testing.assert_frame_equal(result.tables["scores"], TABLE[:1])
    assert set(result.arrays) == {"curve", "sums"}
    np.testing.assert_array_equal(result.arrays["curve"], np.arange(3.0))
    assert result.figures == []


def fail(work: StoredJob, error: BaseException, state: bool) -> None:
    """Break off a running job, before or after it has kept a state to go on from."""
    with work.running():
        (work.partial / "curves").mkdir()
        if state:
            write_state(work.states, "half", {"done": 2})
        raise error


BROKEN_OFF = [StoreError("disk full"), ValueError("a bug"), KeyboardInterrupt()]


@pytest.mark.parametrize(
    ("error", "state"), [(TrainingError("diverged"), True), *((error, False) for error in BROKEN_OFF)]
)
def test_a_failure_without_a_state_leaves_nothing(error, state, tmp_path):
    with pytest.raises(type(error)):
        fail(job(tmp_path / "store"), error, state)
    assert everything(tmp_path) == []


@pytest.mark.parametrize("error", BROKEN_OFF)
def test_an_interrupted_job_keeps_its_state(error, tmp_path):
    with pytest.raises(type(error)):
        fail(job(tmp_path), error, state=True)
    assert not job(tmp_path).done
    with job(tmp_path).running():
        assert read_state(newest_state(job(tmp_path).states, "half")) == {"done": 2}, "the same command goes on from it"


def test_a_failure_leaves_all_earlier_results(tmp_path):
    for key in ("abc", "other"):
        done(tmp_path, key)
    before = everything(tmp_path)
    with pytest.raises(DataError):
        fail(job(tmp_path), DataError("none"), state=False)
    assert everything(tmp_path) == before


def test_an_unwritable_store_is_one_line_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"the store .*file/store/stitching cannot be written: .*; choose store=DIR$"):
        job(tmp_path / "file" / "store").running().__enter__()


def test_a_lock_of_this_thread_is_refused_and_anothers_awaited(tmp_path):
    """As of a script that is imported again while its job runs, which would wait for itself without an end."""
    path, order = tmp_path / "job" / "lock", []

    def other():
        with locked(path, "computing x"):
            order.append("other")

    with locked(path, "computing x"):
        with pytest.raises(RuntimeError, match="Deadlock"):
            locked(path, "computing x").__enter__()
        waiting = threading.Thread(target=other)
        waiting.start()
        time.sleep(0.2)
        order.append("first")
    waiting.join()
    assert order == ["first", "other"]
    with locked(path, "computing x"):
        pass


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('held', flush=True); input()"
    partial = job(tmp_path).partial
    partial.mkdir(parents=True)
    other = subprocess.Popen(
        [sys.executable, "-S", "-c", hold, partial / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="another process"):
            job(tmp_path).running(wait=False).__enter__()
        other.kill()
    assert done(tmp_path).exists()


def cells(source: str, target: str, values: list[list[float]]) -> pd.DataFrame:
    """Return the rows of a matrix of layers; every interval is of width .2."""
    rows = [
        {"source": source, "target": target, "source_layer": i, "target_layer": j, "value": value}
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    table = pd.DataFrame(rows)
    return table.assign(low=table["value"] - 0.1, high=table["value"] + 0.1)


def test_stitching_headlines_are_the_mean_and_worst_penalty():
    random = np.random.default_rng(0)
    tokens, target = np.full(30, 100.0), random.normal(300, 10, 30)
    stitch = target + random.normal([[20.0], [50.0]], 5, (2, 30))
    own = bootstrap_interval(torch.from_numpy((stitch - target).mean(0)), torch.from_numpy(tokens))
    table = pd.DataFrame({"penalty": [0.2, 0.5], "penalty_low": [0.1, 0.4], "penalty_high": [0.3, 0.6]})
    table = table.assign(source_layer=[0, 1], target_layer=[0, 2])
    arrays = {"stitch": stitch, "target": target, "tokens": tokens}
    found = of("stitch", table, {"mean_penalty": 0.35}, arrays=arrays)
    assert found["mean_penalty"] == pytest.approx((*("mean_penalty", 0.35), float(own.low), float(own.high), None, ""))
    assert found["worst_penalty"] == ("worst_penalty", 0.5, 0.4, 0.6, None, "1→2")
    both_ways = of("stitch", pd.concat([table, table], ignore_index=True), {"mean_penalty": 0.35}, arrays=arrays)
    assert both_ways["mean_penalty"] == ("mean_penalty", 0.35, None, None, None, ""), "two sets of documents"
    seeds = of("stitch", table, {"mean_penalty": 0.35}, arrays=arrays | {"seed_1": stitch + 10.0})["mean_penalty"]
    assert seeds.high - seeds.low > 2 * float(own.high - own.low), "seeds that differ"


@pytest.mark.parametrize("kind", ["cka", "mutual_knn", "r2"])
def test_pair_headlines_are_the_mean_and_least_of_equal_depths(kind):
    across = cells("a", "b", [[0.9, 0.5, 0.2], [0.1, 0.95, 0.4]])  # depths: 0 with 0, and 1 with 2
    table = pd.concat([across, cells("a", "a", [[1.0, 0.99], [0.99, 1.0]])], ignore_index=True)
    found = of(kind, table)
    assert found[f"mean_{kind}"].value == pytest.approx((0.9 + 0.4) / 2)
    assert found[f"lowest_{kind}"][1:4] == pytest.approx((0.4, 0.3, 0.5))
    assert str(found[f"lowest_{kind}"]) == f"lowest {kind.replace('_', ' ')} 0.4 [0.3, 0.5] at layer 1 with 2"


def test_a_model_beside_itself_says_nothing_by_its_diagonal():
    found = of("cka", cells("a", "a", [[1.0, 0.3], [0.5, 1.0]]))
    assert found["mean_cka"].value == pytest.approx(0.4)
    assert (found["lowest_cka"].value, found["lowest_cka"].at) == (0.3, "layer 0 with 1")
    assert list(of("cka", cells("a", "a", [[1.0]]), {"batches": 64.0})) == ["batches"], "one layer has no pair"


def test_mlem_and_rsa_have_their_means_and_their_best():
    by_fold = np.array([[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]])  # layers, folds
    scores = pd.DataFrame({"score": [0.2, 0.6], "low": [0.0, 0.5], "high": [0.4, 0.7]})
    found = of("mlem", pd.DataFrame(), scores=scores, arrays={"scores": by_fold})
    mean = fold_interval(torch.tensor([0.3, 0.4, 0.5], dtype=torch.float64))
    assert found["mean_score"][1:4] == pytest.approx(tuple(map(float, mean)))
    assert found["best_score"][1:4] == (0.6, 0.5, 0.7)
    found = of("rsa", cells("a", "a", [[1.0, 0.3], [0.3, 1.0]]), {"stimuli": 8.0, "mean_similarity": 0.3})
    assert found["mean_similarity"].value == 0.3
    assert found["highest_similarity"][1:4] == pytest.approx((0.3, 0.2, 0.4)), "of different layers"
    two = [cells("a", "a", [[1.0, 0.3], [0.3, 1.0]]), cells("a", "b", [[0.1, 0.2], [0.0, 0.1]])]
    found = of("rsa", pd.concat(two, ignore_index=True), {"stimuli": 8.0, "mean_similarity": 0.3})
    assert found["highest_similarity"].value == 0.2, "of two models, where there are two"
    assert list(of("rsa", cells("a", "a", [[1.0]]), {"stimuli": 8.0})) == ["stimuli"]


def test_a_headline_is_written_with_its_interval_if_it_has_one():
    whole = Headline.with_ends("mean_penalty", 0.20481, 0.18379, 0.23290)
    assert str(whole) == "mean penalty 0.2048 [0.1838, 0.2329]"
    assert whole.numbers == {"mean_penalty": 0.20481, "mean_penalty_low": 0.18379, "mean_penalty_high": 0.23290}
    alone = Headline.with_ends("mean_penalty", 0.2, np.nan, np.inf)
    assert (alone.low, alone.high, str(alone), alone.numbers) == (None, None, "mean penalty 0.2", {"mean_penalty": 0.2})
    assert first_scalar({"b": 1.0, "b_low": 0.5, "b_high": 1.5, "a": 2.0}) == [("b", 1.0, 0.5, 1.5, None, "")]


RUN = {"model": {"name": "tiny"}, "stitch": {"kind": "linear", "steps": 2000}, "layers": "same", "seed": 0}
BOTH = ("gelu-3l-mini", "solu-3l-mini")


def put(store: Path, kind: str, key: str, models=("gelu-3l-mini",), settings=None, value=0.5, **made) -> Path:
    """Write a finished job; `made` is what its provenance says of how."""
    record = {"config": RUN, "settings": settings, "scalars": {"batches": 4.0}}
    record["headlines"] = [Headline("score", value, value - 0.1, value + 0.1)._asdict()]
    made = {"date": "2026-11-01T12:00:00+00:00", "phases": {"computing": 60.0}} | made
    return finish(store, kind, key, {"table": TABLE}, models, **record, **made).folder


@pytest.fixture
def store(tmp_path) -> Path:
    """A store of three kinds; the stitches differ in their steps and models."""
    place = tmp_path / "results"
    named = {"model": {"name": "gelu-3l-mini"}, "target": {"name": "solu-3l-mini"}, "data": {"name": "stdlib"}}
    put(place, "stitching", "aa", BOTH, named, 0.25, date="2026-11-02T12:00:00+00:00")
    put(place, "stitching", "bb", BOTH, named | {"stitch": {"steps": 10}}, 0.75, date="2026-11-03T12:00:00+00:00")
    put(place, "loss", "cc", date="2026-11-01T12:00:00+00:00")
    return place


@pytest.fixture
def listed(monkeypatch, capsys):
    """Calls `thinkalike results` inside this process."""

    def call(*words, columns: int = 80):
        status = 0
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            patch.setattr(sys, "argv", ["thinkalike", "results", *map(str, words)])
            try:
                main()
            except SystemExit as end:
                status = end.code
        return SimpleNamespace(**capsys.readouterr()._asdict(), status=status)

    return call


def test_a_list_shows_headlines_and_differing_settings(store, listed):
    shown = listed(store, columns=240)  # in which the path of any folder of tests stays whole
    assert (shown.status, shown.err) == (0, "")
    for text in ("aa", "bb", "cc", "score 0.75 [0.65, 0.85]", "2026-11-03 12:00", "1 result", "2 results", "60 s"):
        assert text in " ".join(shown.out.split()), text
    assert "stitch.steps=10" in shown.out
    assert "stitch.steps=2000" in shown.out, "a default is that of the configuration"
    assert "data=" not in shown.out, "all of a kind have the same"
    assert shown.out.index("loss:") < shown.out.index("aa") < shown.out.index("bb"), "the newest comes last"


def test_csv_and_json_are_clean_and_in_full_precision(tmp_path, listed):
    put(tmp_path, "cka", "aa", value=1 / 3)
    (tmp_path / "cka" / "foreign").mkdir()
    table = listed(tmp_path, "--csv")
    (row,) = pd.read_csv(io.StringIO(table.out), float_precision="round_trip").to_dict("records")
    assert (row["kind"], row["value"], row["score_high"], row["batches"]) == ("cka", 1 / 3, 1 / 3 + 0.1, 4.0)
    text = listed(tmp_path, "--json")
    (found,) = json.loads(text.out)
    assert found["headlines"][0]["value"] == 1 / 3
    assert found["models"] == ["gelu-3l-mini"]
    assert found["folder"] == str(tmp_path / "cka" / "aa")
    assert table.err == text.err == ""


FORGED = "=HYPERLINK(1)\x1b[2J\nnext"


@pytest.mark.parametrize("folder", ["plain", "step=500", "kind=cka"])
def test_what_a_forged_result_says_is_text_alone(tmp_path, listed, folder):
    """It is no formula of a spreadsheet and no command to a terminal; and a folder that exists is no setting."""
    store = tmp_path / folder
    finish(store, "cka", "aa", {"table": TABLE}, [FORGED, "+1"], scalars={"@sum": -0.5}, settings={"seed": "-2+3"})
    finish(store, "cka", "bb", {"table": TABLE}, [FORGED], settings={"seed": "\t=1"})
    shown = listed(store, "--csv")
    assert (shown.status, "\x1b" in shown.out) == (0, False)
    table = pd.read_csv(io.StringIO(shown.out))
    assert table["'@sum"].iloc[0] == -0.5, "a number stays one"
    cells = [cell for cell in [*table.columns, *table.to_numpy(object).ravel()] if isinstance(cell, str)]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    for name in ("=cmd|x!A0", "+1+1", "a\u202e\x1b[2J"):
        finish(store, "r2", "cc", {"table": TABLE}, scalars={name: 0.5})
        header = listed(store, "kind=r2", "--csv").out.splitlines()[0]
        assert header.isprintable()
        assert not any(cell.startswith(("=", "+")) for cell in header.split(","))
    at = {"name": "mean", "value": 0.5, "at": "layer\u2028\x1b[2J\u2066"}
    assert repr(finish(store, "r2", "cc", {"table": TABLE}, headlines=[at])).isprintable()
    said = repr(open_result(store / "cka" / "aa"))
    assert said.startswith("Result(cka of ")
    assert said.isprintable()


@pytest.mark.parametrize("kind", ["unknown\x1b[2J\nresults: /etc", "loss", "stitching"])
def test_the_texts_of_a_result_have_no_control_characters(kind, tmp_path):
    names = ("a\x1b]0;owned\x07", "b\u2028\u202e\nresults: /etc")
    at = {"name": "mean\x1b[2J", "value": 0.5, "at": "layer\nresults: /etc"}
    folder = tmp_path / "store\x1b[2J"
    result = finish(folder, "cka", "aa", {"table": TABLE}, names, headlines=[at])
    record = json.loads((result.folder / "result.json").read_text()) | {"kind": kind}
    (result.folder / "result.json").write_text(json.dumps(record))
    seal(result.folder)
    opened = open_result(result.folder)
    texts = [repr(opened), opened.location, str(opened.headlines[0])]
    with contextlib.suppress(ResultError):  # of a kind whose screen shows what this table lacks
        texts += [opened.summary, str(opened)]
    for text in texts:
        assert plain(text) == text
        assert "\nresults: /etc" not in text
    is_known = not kind.startswith("unknown")
    assert is_known or len(texts) == 5


@pytest.mark.parametrize("kind", ["cka", "mutual_knn", "r2", "distance", "mlem"])
@pytest.mark.parametrize(
    "table",
    [TABLE.iloc[:0], pd.DataFrame(columns=["source", "target", "source_layer", "target_layer", "value"])],
    ids=["no rows", "no rows of layer pairs"],
)
def test_a_table_that_lacks_what_its_kind_ranks_is_one_line(kind, table, tmp_path):
    result = open_result(finish(tmp_path, kind, "abc", {"table": table}).folder)
    with contextlib.suppress(ResultError):
        assert result.table.empty
    assert result.details.empty


def test_a_table_without_rows_of_layer_pairs_is_one_line(tmp_path):
    table = pd.DataFrame(columns=["source", "target", "source_layer", "target_layer", "value"])
    result = open_result(finish(tmp_path, "cka", "abc", {"table": table}).folder)
    with pytest.raises(ResultError, match=r"abc lacks what cka shows \(IndexError: .*force=True"):
        result.table  # noqa: B018


def test_a_relative_folder_in_a_deleted_working_folder_is_one_line(tmp_path, monkeypatch):
    result = finish(tmp_path / "store", "cka", "abc", {"table": TABLE})
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for folder in ("relative", ".", "../store/cka/abc", Path("relative")):
        with pytest.raises(ConfigError, match=r"^the working folder was deleted; cd to one that exists$"):
            open_result(folder)
    with pytest.raises(ConfigError, match=r"^the working folder was deleted"):
        thinkalike.load_model("./relative")
    assert open_result(result.folder).kind == "cka"


def test_a_number_of_the_name_of_a_column_has_one_of_its_own(tmp_path):
    """Else a forged scalar replaces the key, and a headline of a second part the most important one."""
    scalars = dict.fromkeys(("kind", "key", "date", "models", "value", "seconds", "folder", "steps"), -1.0)
    headlines = [{"name": "loss", "value": 0.25}, {"name": "value", "value": 9.0}, {"name": "loss", "value": 8.0}]
    table = {"table": TABLE}
    finish(tmp_path, "cka", "aa", table, settings={"steps": 1, "date": 3}, scalars=scalars, headlines=headlines)
    finish(tmp_path, "cka", "bb", table, settings={"steps": 2}, scalars={"mean": 0.5})
    found = thinkalike.results(tmp_path).set_index("key").loc["aa"]
    assert (found["kind"], found["models"], found["headline"], found["value"]) == ("cka", "a, b", "loss", 0.25)
    assert (found["date"].year, found["folder"]) == (datetime.now(UTC).year, str(tmp_path / "cka" / "aa"))
    assert (found["loss"], found["headlines.value"], found["steps"], found["settings.date"]) == (0.25, 9.0, 1, 3)
    assert found[[f"scalars.{name}" for name in scalars]].tolist() == [-1.0] * len(scalars)


def test_json_of_a_list_has_no_number_that_json_lacks(tmp_path, listed):
    finish(tmp_path, "cka", "aa", {"table": TABLE}, scalars={"a": float("nan"), "b": float("-inf"), "c": 0.5})

    def refused(name):
        raise AssertionError(f"{name} is no JSON")

    (found,) = json.loads(listed(tmp_path, "--json").out, parse_constant=refused)
    assert found["scalars"] == {"a": None, "b": None, "c": 0.5}


@pytest.mark.timeout(60)
def test_thousands_of_made_up_settings_end_no_list(tmp_path, listed):
    """A table has a column for each setting, so two such results took minutes."""
    put(tmp_path, "cka", "aa")
    for number in range(2):
        settings = {f"setting_{number}_{place}": place for place in range(20_000)}
        with pytest.raises(StoreError, match="20,000 settings"):
            finish(tmp_path, "cka", f"many-{number}", {"table": TABLE}, settings=settings)
    shown = listed(tmp_path, "--csv")
    assert (shown.status, shown.err.count("20,000 settings"), "aa" in shown.out) == (0, 2, True)
    for number in range(4):
        settings = {f"setting_{number}_{place}": place for place in range(1_900)}
        finish(tmp_path, "rsa", f"wide-{number}", {"table": TABLE}, settings=settings)
    table = thinkalike.results(tmp_path)
    assert table["kind"].tolist().count("cka") == 1
    assert 1 < len(table) < 5, "some of those that are within the bounds alone, and not all"


def test_a_total_is_shown_as_it_is():
    assert str(Headline("claims_that_hold", 2.6, of=5)) == "claims that hold 2.6 of 5"
    assert str(Headline("flips", 1_234_567.0, of=9_999_999)) == "flips 1234567 of 9999999"


def test_in_python_it_is_a_table(store):
    with job(store, "dd").running():
        write(job(store, "dd"))
        table = thinkalike.results(store).set_index("key")
    assert table.index.tolist() == ["cc", "aa", "bb"]
    assert table.loc[["aa", "bb"], "stitch.steps"].tolist() == [2000, 10]
    assert table["models"].tolist() == ["gelu-3l-mini", *[", ".join(BOTH)] * 2]
    assert open_result(table["folder"]["bb"]).key == "bb"
    assert table["date"].iloc[0] == datetime(2026, 11, 1, 12, tzinfo=UTC)
    assert thinkalike.results(store, kind=["loss"])["key"].tolist() == ["cc"]
    assert len(thinkalike.results(store, model="solu-3l-mini")) == 2
    with pytest.raises(ConfigError, match=r"kind=stitchin is in no result of .*; did you mean 'stitching'\?"):
        thinkalike.results(store, kind="stitchin")


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("kind=loss", "cc"),
        ("kind=loss,stitching", "cc aa bb"),
        ("model=solu-3l-mini,gelu-3l-mini kind=stitching", "aa bb"),
        ("sort=score", "aa cc bb"),
        *((f"sort={order}", "cc aa bb") for order in ("kind", "models", "duration")),
    ],
)
def test_results_are_chosen_and_sorted(store, listed, words, keys):
    found = json.loads(listed(f"store={store}", *words.split(), "--json").out)
    assert [each["key"] for each in found] == keys.split()


@pytest.mark.parametrize(
    ("value", "keys"),
    [("a,b", ["commas"]), ("a", ["first"]), ("a,c", ["first", "third"])],
)
def test_a_model_may_have_commas_in_its_name(value, keys, tmp_path):
    for key, name in {"commas": "a,b", "first": "a", "second": "b", "third": "c"}.items():
        put(tmp_path, "loss", key, [name])
    query = Query.parsed([str(tmp_path), f"model={value}"])
    assert [entry.result.key for entry in selected(search(tmp_path), query)] == keys


@pytest.mark.parametrize(("file", "text"), [("table.csv", None), ("manifest.json", '{"files": []}')])
def test_a_damaged_folder_is_named_and_skipped(store, listed, file, text):
    """A file that is gone, and the manifest of another program."""
    folder = store / "stitching" / "aa"
    (folder / file).write_text(text) if text else (folder / file).unlink()
    shown = listed(store)
    (line,) = shown.err.splitlines()
    assert line.startswith(f"skipped: {folder}")
    assert "damaged" in line or "missing" in line
    assert (shown.status, "bb" in shown.out, "aa" in shown.out.replace(str(store), "")) == (0, True, False)


def test_a_forged_headline_ends_no_list(store, listed):
    folder = store / "stitching" / "aa"
    record = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(record | {"headlines": [{"name": "x", "value": "1"}]}))
    seal(folder)
    shown = listed(store)
    assert (f"skipped: {folder}/result.json cannot be read" in shown.err, "bb" in shown.out) == (True, True)


STRANGE_CONFIGURATIONS = {
    "no YAML": "{a: b",
    "a date": "zzz: 2024-01-01",
    "a date deeper": "zzz: [{a: [2024-01-01]}]",
    "a date as a name": "zzz: {2024-01-01: 1}",
    "a set": "zzz: !!set {b}",
    "bytes": "zzz: !!binary aGk=",
    "a tuple": "zzz: !!python/tuple [1, 2]",
    "pairs": "zzz: !!pairs [a: 1]",
    "a long number": f"zzz: 0x{'f' * 10_000}",
    "a list as a name": "zzz: {[1, 2]: 1}",
    "one name twice": "zzz.a: 1\nzzz: {a: 2}",
    "a list": "- 1",
    "nothing": "",
}


def differing_in_one(store: Path, text: str, is_sealed: bool = True) -> Path:
    """Put three results into a store, of which one lacks a setting, so that its configuration is read."""
    put(store, "cka", "aa", settings={"zzz": 1, "yyy": 1})
    put(store, "cka", "bb", settings={"zzz": 2})
    folder = put(store, "cka", "cc")
    config = folder / "config.yaml"
    config.write_text(text if is_sealed else f"{{{config.read_text()[1:]}")
    if is_sealed:
        seal(folder)
    return folder


@pytest.mark.parametrize("text", [*STRANGE_CONFIGURATIONS.values(), None], ids=[*STRANGE_CONFIGURATIONS, "damaged"])
def test_one_configuration_ends_no_list(text, tmp_path, listed):
    """It was read outside of all that judges a result, so that a whole store could not be listed."""
    store = tmp_path / "store"
    folder = differing_in_one(store, text or "", is_sealed=text is not None)
    for words in ((), ("--json",), ("--csv",)):
        shown = listed(store, *words)
        (line,) = shown.err.splitlines()
        assert (shown.status, line.startswith(f"skipped: {folder}/config.yaml cannot be read (")) == (0, True), line
        assert ("aa" in shown.out, "bb" in shown.out) == (True, True)
    table = thinkalike.results(store)
    assert table["key"].tolist() == ["aa", "bb"]
    assert table["zzz"].tolist() == [1, 2]
    report = report_of(gather([store]))
    assert ([entry["key"] for entry in report["results"]], len(report["left_out"])) == (["aa", "bb"], 1)


def test_a_configuration_that_was_changed_shows_no_default(tmp_path):
    folder = differing_in_one(tmp_path, "zzz: 5\nyyy: 6")
    assert thinkalike.results(tmp_path)["zzz"].tolist() == [1, 2, 5], "control"
    (folder / "config.yaml").write_text("zzz: 7\nyyy: 6")  # of the same size
    assert thinkalike.results(tmp_path)["zzz"].tolist() == [1, 2]
    with pytest.raises(StoreError, match="its checksum is not that of what was written"):
        _ = Result(folder).config


def test_settings_differ_within_the_parts_that_have_one_name(tmp_path):
    """Planted: what the names of models decide is no difference, and a lacking setting is."""

    def entries(*settings):
        store = tmp_path / str(len(list(tmp_path.iterdir())))
        for number, each in enumerate(settings):
            put(store, "cka", f"k{number}", settings=each)
        return sorted(selected(search(store), Query(store))[0].differing)

    gpt2, pythia = ({"model": {"name": name, "dtype": dtype}} for name, dtype in (("gpt2", "a"), ("pythia", "b")))
    assert entries(gpt2, pythia) == [], "the name decides the dtype"
    assert entries(gpt2, {"model": {"name": "gpt2", "dtype": "b"}}) == ["model.dtype"]
    assert entries(gpt2, pythia, {"model": {"name": "pythia"}}) == ["model.dtype"]
    assert entries({"data": {"name": "pile"}}, {"data": {"name": "c4"}}) == ["data.name"]
    assert entries({"seed": 1}, {"seed": 1}) == []
    assert entries({"seed": 1}, {"seed": 2}, {}) == ["seed"]
    assert entries({"seed": None}, {}) == [], "null and nothing are one"
    assert entries({"model.name": [1], "model.dtype": "x"}, {"model.name": {"a": 1}, "model.dtype": "y"}) == []
    assert entries({"model.name": [1], "model.dtype": "x"}, {"model.name": [1], "model.dtype": [2]}) == ["model.dtype"]


def test_settings_are_compared_in_one_pass(tmp_path, monkeypatch):
    """Each value is written once, however many results there are: it was once for each result of the kind."""
    counts = []
    for results in (10, 20, 40):
        store = tmp_path / str(results)
        for number in range(results):
            put(store, "cka", f"k{number}", settings={f"s{number}_{place}": place for place in range(20)})
        found = search(store)
        written = []
        with monkeypatch.context() as patch:
            patch.setattr(
                "thinkalike.listing.differing._comparable_text",
                lambda value, written=written: written.append(value) or str(value),
            )
            patch.setattr("thinkalike.listing.differing._settings_named", lambda entry, names: {})
            selected(found, Query(store))
        counts.append(len(written))
    assert counts == [counts[0], 2 * counts[0], 4 * counts[0]]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wide", with_slow(["settings", "scalars", "headlines"], "settings"))
def test_a_result_of_too_many_columns_hides_no_other(wide, tmp_path, listed):
    """Each of eight results is within its bounds, and together they have more columns than any table."""
    finish(tmp_path, "cka", "plain", {"table": TABLE}, scalars={"mean": 0.5})
    for number in range(8):
        names = [f"n{number}_{place}" for place in range(900)]
        values = {"headlines": [{"name": name, "value": 1.0, "low": 0.0, "high": 2.0} for name in names]}
        more = values if wide == "headlines" else {wide: dict.fromkeys(names, 1.0)}
        finish(tmp_path, "cka", f"k{number}", {"table": TABLE}, **more)
    table = thinkalike.results(tmp_path)
    assert "plain" in table["key"].tolist()
    assert 1 < len(table) < 9
    assert len(table.columns) < 5100
    shown = listed(tmp_path)
    assert shown.status == 0
    assert "plain" in shown.out
    left_out = shown.err.splitlines()
    assert len(left_out) == 9 - len(table)
    assert all("settings and numbers, and a list has at most 5,000" in line for line in left_out)


@pytest.mark.parametrize("count", [4990, 5000])
def test_a_result_of_thousands_of_numbers_does_not_end_a_list(count, tmp_path):
    finish(tmp_path, "cka", "aa", {"table": TABLE}, scalars={f"n{number}": 1.0 for number in range(count)})
    finish(tmp_path, "cka", "bb", {"table": TABLE}, scalars={"mean": 0.5})
    table = thinkalike.results(tmp_path)
    assert table.set_index("key").loc["bb", "mean"] == 0.5
    assert ("aa" in table["key"].tolist()) == (count < 5000)


def test_a_scalar_that_a_headline_contradicts_is_shown_beside_it(tmp_path):
    at = [{"name": "mean", "value": 0.5, "low": 0.4, "high": 0.6}]
    finish(tmp_path, "cka", "aa", {"table": TABLE}, scalars={"mean": 0.7, "mean_low": 0.4}, headlines=at)
    table = thinkalike.results(tmp_path)
    assert table.loc[0, ["mean", "scalars.mean", "mean_low"]].tolist() == [0.5, 0.7, 0.4]
    assert "scalars.mean_low" not in table, "one number has one column"


def test_dates_of_all_time_zones_are_those_of_utc(tmp_path):
    for key, zone in (("aa", "+02:00"), ("bb", "-05:00"), ("cc", "")):
        finish(tmp_path, "cka", key, {"table": TABLE}, date=f"2026-01-01T12:00:00{zone}")
    table = thinkalike.results(tmp_path).set_index("key")
    assert str(table["date"].dt.tz) == "UTC"
    assert table["date"].dt.hour.to_dict() == {"aa": 10, "bb": 17, "cc": 12}


@pytest.mark.parametrize("file", ["result.json", "manifest.json", "config.yaml"])
def test_a_name_that_a_file_has_twice_is_refused(file, tmp_path):
    result = finish(tmp_path, "cka", "aa", {"table": TABLE})
    path = result.folder / file
    content = path.read_text().rstrip().removesuffix("}")
    path.write_text("seed: 1\nseed: 2\n" if file == "config.yaml" else f'{content}, "kind": "r2", "kind": "r2"}}')
    if file != "manifest.json":
        seal(result.folder)
    read = {"config.yaml": lambda: open_result(result.folder).config, "result.json": lambda: Result(result.folder).kind}
    with pytest.raises(StoreError, match=f"{file}.*twice in one"):
        read.get(file, lambda: open_result(result.folder))()


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (["a.npy", "a.npy"], "the same name"),
        (["a.npy", "a"], "a in it is not an array"),
        (["readme.txt"], "is not an array"),
    ],
)
def test_an_archive_has_arrays_alone_and_one_of_each_name(members, said, tmp_path):
    result = finish(tmp_path, "cka", "aa", {"table": TABLE})
    array = io.BytesIO()
    np.save(array, np.ones(3))
    with warnings.catch_warnings(), zipfile.ZipFile(result.folder / "arrays.npz", "w") as archive:
        warnings.simplefilter("ignore")  # zipfile warns of two members of one name
        for name in members:
            archive.writestr(name, array.getvalue())
    seal(result.folder)
    with pytest.raises(StoreError, match=said):
        _ = open_result(result.folder).arrays


def test_a_name_with_line_breaks_forges_no_line(tmp_path, listed):
    """Of a folder, a file, a model, a setting and a headline: each would print lines that nobody wrote."""
    forged = "k\nskipped: everything is fine"
    finish(tmp_path, "loss", forged, {"table": TABLE}).folder.joinpath("table.csv").write_text("x")
    (tmp_path / "r2\nx" / "a\nb.partial").mkdir(parents=True)
    at = {"name": "mean\nforged", "value": 0.5, "at": "a\nforged"}
    for key in ("aa", "bb"):
        settings = {"seed": f"{key}\nforged", "b\nforged": key}
        finish(tmp_path, "cka", key, {"table": TABLE}, ["m\nforged"], settings=settings, headlines=[at])
    finish(tmp_path, "rsa", "x\nforged", {"table": TABLE})
    shown = listed(tmp_path, columns=240)
    assert [line.split(":")[0] for line in shown.err.splitlines()] == ["skipped", "unfinished, running or interrupted"]
    assert "forged" in shown.out, "control"
    cells = [cell.strip() for line in shown.out.splitlines() for cell in line.split("│")]
    assert not any(cell.startswith("forged") for cell in cells)


def test_two_numbers_never_share_a_column(tmp_path):
    scalars = {"date": 1.0, "scalars.date": 2.0, "scalars.scalars.date": 3.0, "headlines.value": 4.0}
    scalars["settings.date"] = 5.0
    settings = {"date": 6, "settings": {"date": 7}}
    headlines = [{"name": "value", "value": 8.0}]
    finish(tmp_path, "cka", "aa", {"table": TABLE}, settings=settings, scalars=scalars, headlines=headlines)
    finish(tmp_path, "cka", "bb", {"table": TABLE}, scalars={"date": 9.0})
    table = thinkalike.results(tmp_path).set_index("key")
    numbers = table.loc["aa"][[name for name in table if name not in FIXED_COLUMNS]].astype(float).dropna()
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6, 7, 8]
    of_date = [name for name in table if table.loc["aa", name] == 1]
    assert table.loc["bb", of_date].tolist() == [9], "one column holds one number of all results"


def test_other_folders_are_no_results(store, listed):
    for name in ("notes/2026", "wandb/offline-run-1", ".cache/x", "stitching/mine"):
        (store / name).mkdir(parents=True)
    (store / "README.md").write_text("mine")
    assert listed(store).err == ""


NEAR_A_STORE = {  # a folder that is named in place of the store, from the folder around the store
    "a kind": "mine/cka",
    "a result": "mine/cka/aa",
    "the folder around it": ".",
    "a kind, by a path up": "mine/loss/../cka",
}
READERS = {
    "results": lambda folder: selected(search(Query.parsed([folder]).store), Query.parsed([folder])),
    "results with store=": lambda folder: search(Query.parsed([f"store={folder}"]).store),
    "from Python": thinkalike.results,
    "report": lambda folder: gather([folder]),
}


@pytest.mark.parametrize("name", NEAR_A_STORE)
@pytest.mark.parametrize("reader", READERS)
def test_a_folder_inside_or_around_a_store_is_said_to_be_that(name, reader, tmp_path, monkeypatch):
    for kind in ("cka", "loss"):
        finish(tmp_path / "mine", kind, "aa", {"table": TABLE})
    monkeypatch.chdir(tmp_path)
    if (name, reader) == ("a result", "report"):
        return  # a page may be that of one result
    with pytest.raises(StoreError, match=f"is not a store itself; the store is {tmp_path}/mine"):
        READERS[reader](NEAR_A_STORE[name])


@pytest.mark.parametrize("reader", READERS)
def test_a_path_with_nul_is_one_line(reader):
    with pytest.raises(ConfigError, match="no character NUL"):
        READERS[reader]("a\0b")


@pytest.mark.parametrize(("words", "named"), [("sort=skore", "score"), ("knd=loss", "kind"), ("kind=los", "loss")])
def test_a_bad_query_names_what_is_meant(store, words, named):
    with pytest.raises(ConfigError, match=named):
        selected(search(store), Query.parsed([words]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["st1", "st2"], "two stores"),
        (["st1", "store=st2"], "two stores"),
        (["store=st1", "store=st2"], "leave one of them out"),
        (["kind=cka", "kind=rsa"], "give kind=cka,rsa"),
        (["model=a", "model=b"], "give model=a,b"),
        (["kind="], "kind= has no value"),
    ],
)
def test_a_query_that_says_two_things_is_refused(words, said):
    """The last of them was taken without a word, and an empty one was no choice."""
    with pytest.raises(ConfigError, match=said):
        Query.parsed(words)


def test_a_list_has_one_form(store, listed):
    shown = listed(store, "--csv", "--json")
    assert (shown.out, shown.err.count("--csv and --json exclude each other")) == ("", 1)


def test_a_sweep_shows_what_was_swept_and_the_headlines(tmp_path, capsys, monkeypatch):
    """Three jobs of a sweep over models and steps; the last differs in its steps alone."""
    made = []
    for number, (model, steps) in enumerate([("gelu-3l-mini", 10), ("solu-3l-mini", 10), ("solu-3l-mini", 20)]):
        folder = put(tmp_path, "stitching", str(number), BOTH, value=0.25 * (number + 1))
        made.append(([f"model={model}", f"stitch.steps={steps}", "seed=3"], folder))
    monkeypatch.setenv("COLUMNS", "80")
    show_sweep(made)
    shown = capsys.readouterr().out
    assert "jobs of the sweep: 3" in shown
    for text in ("model=gelu-3l-mini", "stitch.steps=20", "score 0.75 [0.65, 0.85]"):
        assert text in shown
    assert "seed" not in shown, "all jobs have the same"
    assert max(map(len, shown.splitlines())) <= 80
