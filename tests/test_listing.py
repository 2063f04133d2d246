"""Lists of results: what is shown of them, which are chosen, what is no result, and the joint table of a sweep."""

import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

import thinkalike
from stores import finish
from test_store import TABLE
from thinkalike.cli import main
from thinkalike.errors import ConfigError
from thinkalike.listing import Query, search, selected, show_sweep
from thinkalike.store import Headline

CONFIG = {"model": {"name": "tiny"}, "stitch": {"kind": "linear", "steps": 2000}, "layers": "same", "seed": 0}
BOTH = ("gelu-3l-mini", "solu-3l-mini")


def planted(store: Path, kind: str, key: str, models=("gelu-3l-mini",), settings=None, value=0.5, **made) -> Path:
    """Write a finished job; `made` is what its provenance says of how."""
    record = {"config": CONFIG, "settings": settings, "scalars": {"batches": 4.0}}
    record["headlines"] = [Headline("score", value, value - 0.1, value + 0.1)._asdict()]
    made = {"date": "2026-11-01T12:00:00+00:00", "phases": {"computing": 60.0}} | made
    return finish(store, kind, key, {"table": TABLE}, models, **record, **made).folder


@pytest.fixture
def store(tmp_path) -> Path:
    """A store of three kinds; the stitches differ in their steps and models."""
    place = tmp_path / "results"
    named = {"model": {"name": "gelu-3l-mini"}, "target": {"name": "solu-3l-mini"}, "data": {"name": "stdlib"}}
    planted(place, "stitching", "aa", BOTH, named, 0.25, date="2026-11-02T12:00:00+00:00")
    planted(place, "stitching", "bb", BOTH, named | {"stitch": {"steps": 10}}, 0.75, date="2026-11-03T12:00:00+00:00")
    planted(place, "loss", "cc", date="2026-11-01T12:00:00+00:00")
    return place


class Listed(NamedTuple):
    """What `thinkalike results` says, and its exit status."""

    out: str
    err: str
    status: int


@pytest.fixture
def listed(monkeypatch, capsys):
    """Calls `thinkalike results` inside this process."""

    def call(*words, columns: int = 80) -> Listed:
        status = 0
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            patch.setattr(sys, "argv", ["thinkalike", "results", *map(str, words)])
            try:
                main()
            except SystemExit as end:
                status = end.code
        return Listed(*capsys.readouterr(), status)

    return call


def test_a_list_shows_headlines_and_differing_settings(store, listed):
    shown = listed(store)
    assert (shown.status, shown.err) == (0, "")
    for text in ("aa", "bb", "cc", "score 0.75 [0.65, 0.85]", "2026-11-03 12:00", "1 result", "2 results", "60 s"):
        assert text in " ".join(shown.out.split()), text
    assert "stitch.steps=10" in shown.out
    assert "stitch.steps=2000" in shown.out, "a default is that of the configuration"
    assert "data=" not in shown.out, "all of a kind have the same"
    assert shown.out.index("loss:") < shown.out.index("aa") < shown.out.index("bb"), "the newest comes last"


def test_csv_and_json_are_clean_and_in_full_precision(tmp_path, listed):
    planted(tmp_path, "cka", "aa", value=1 / 3)
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


def test_in_python_it_is_a_table(store):
    table = thinkalike.results(store).set_index("key")
    assert table.index.tolist() == ["cc", "aa", "bb"]
    assert table.loc[["aa", "bb"], "stitch.steps"].tolist() == [2000, 10]
    assert table["date"].iloc[0] == datetime(2026, 11, 1, 12, tzinfo=UTC)
    assert thinkalike.results(store, kind=["loss", "stitching"], since="2026-11-03")["key"].tolist() == ["bb"]
    assert len(thinkalike.results(store, model="solu-3l-mini")) == 2
    with pytest.raises(ConfigError, match=r"kind=stitchin is in no result of .*; did you mean 'stitching'\?"):
        thinkalike.results(store, kind="stitchin")


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("kind=loss", "cc"),
        ("kind=loss,stitching", "cc aa bb"),
        ("model=solu-3l-mini,gelu-3l-mini kind=stitching", "aa bb"),
        ("since=2026-11-03", "bb"),
        ("since=2026-11-02T14:00:00+02:00", "aa bb"),
        ("sort=score", "aa cc bb"),
        *((f"sort={order}", "cc aa bb") for order in ("kind", "models", "duration")),
    ],
)
def test_results_are_chosen_and_sorted(store, listed, words, keys):
    found = json.loads(listed(f"store={store}", *words.split(), "--json").out)
    assert [each["key"] for each in found] == keys.split()


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


def test_other_folders_are_no_results(store, listed):
    for name in ("notes/2026", "wandb/offline-run-1", ".cache/x", "stitching/mine"):
        (store / name).mkdir(parents=True)
    (store / "README.md").write_text("mine")
    assert listed(store).err == ""


@pytest.mark.parametrize(
    ("words", "named"),
    [("sort=skore", "score"), ("knd=loss", "kind"), ("since=soon", "soon"), ("kind=los", "loss")],
)
def test_a_bad_query_names_what_is_meant(store, words, named):
    with pytest.raises(ConfigError, match=named):
        selected(search(store), Query.parsed([words]))


def test_a_sweep_shows_what_was_swept_and_the_headlines(tmp_path, capsys, monkeypatch):
    """Three jobs of a sweep over models and steps; the last differs in its steps alone."""
    made = []
    for number, (model, steps) in enumerate([("gelu-3l-mini", 10), ("solu-3l-mini", 10), ("solu-3l-mini", 20)]):
        folder = planted(tmp_path, "stitching", str(number), BOTH, value=0.25 * (number + 1))
        made.append(([f"model={model}", f"stitch.steps={steps}", "seed=3"], folder))
    monkeypatch.setenv("COLUMNS", "80")
    show_sweep(made)
    shown = capsys.readouterr().out
    assert "jobs of the sweep: 3" in shown
    for text in ("model=gelu-3l-mini", "stitch.steps=20", "score 0.75 [0.65, 0.85]"):
        assert text in shown
    assert "seed" not in shown, "all jobs have the same"
    assert max(map(len, shown.splitlines())) <= 80
