"""The page of a store: what it holds is what the tables hold, and nothing in it can be mistaken for markup."""

import base64
import errno
import gzip
import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conftest import with_slow
from stores import finish, layer_pairs, profile
from thinkalike import cli
from thinkalike.columns import Columns
from thinkalike.config import MEASURES
from thinkalike.files import ForeignFileError
from thinkalike.instruments import instrument
from thinkalike.report import grids
from thinkalike.report.grids import MOST_GRIDS
from thinkalike.report.reports import MOST_ROWS, gather, is_command, report_of, report_page, title_of
from thinkalike.store import seal

TABLE = pd.DataFrame({"note": ["a"], "loss": [0.5]})
CLAIMS = pd.DataFrame(
    {"claim": ["A is like B"], "verdict": ["undecided"], "numbers": ["+0.1 [-0.1, 0.3]"], "units": ["9 documents"]}
)


def data_of(page: str) -> dict:
    """Return what a page holds, read as the page itself reads it."""
    (packed,) = re.findall(r'<script type="application/gzip" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def grids_of(table: pd.DataFrame, **more) -> list[dict]:
    """Return the grids of a table as it is written into a result."""
    return grids.grids_of(Columns.parsed(table.to_csv(index=False)), **more)


@pytest.fixture
def store(tmp_path):
    """A store of two models: two measures of their layers, features of both, claims, and a table of another form."""
    place = tmp_path / "results"
    headline = {"name": "distance", "value": 1.25, "low": 1.0, "high": 1.5, "of": None}
    pairs, novel = layer_pairs("a", "b", 3, 2), layer_pairs("b", "a", 2, 3, seed=1).drop(columns=["low", "high"])
    finish(place, "cka", "c1", {"table": pairs}, headlines=[headline])
    finish(place, "novel", "n1", {"table": novel})
    for number, (model, layers) in enumerate([("a", 3), ("b", 2)], 1):
        finish(place, "mlem", f"m{number}", {"table": profile(model, ["tense", "case"], layers)}, models=(model,))
    finish(place, "paper-figure1", "p1", {"table": pairs, "claims": CLAIMS}, models=())
    finish(place, "loss", "l1", {"table": pd.DataFrame({"model": ["a"] * 70, "loss": range(70)})}, models=("a",))
    return place


def test_a_grid_has_the_number_and_the_interval_of_every_row():
    table = layer_pairs("a", "b", 3, 2).sample(frac=1, random_state=0)  # in whatever order
    (grid,) = grids_of(table)
    assert (grid["role"], grid["models"], grid["rows"], grid["columns"]) == ("pair", ["a", "b"], [0, 1, 2], [0, 1])
    (number,) = grid["numbers"]
    assert grid["cells"] is None, "all are there, in the order of the layers"
    for row in table.itertuples():
        i = row.source_layer * 2 + row.target_layer
        written = number["v"][i], number["low"][i], number["high"][i]
        assert written == pytest.approx((row.value, row.low, row.high), rel=1e-5)


def turned(table: pd.DataFrame) -> pd.DataFrame:
    """Return the layer pairs of a table from the target to the source."""
    names = {"source": "target", "target": "source", "source_layer": "target_layer", "target_layer": "source_layer"}
    return table.rename(columns=names)


def test_both_directions_of_a_symmetric_measure_are_one_grid():
    """RSA of two models was two matrices with the same numbers."""
    table = layer_pairs("a", "b", 3, 2)
    assert [grid["models"] for grid in grids_of(pd.concat([table, turned(table)]))] == [["a", "b"]]
    for other in (
        turned(table).assign(value=turned(table)["value"] + 0.1),
        turned(table).assign(low=0.0),
        turned(table).iloc[1:],
        layer_pairs("b", "b", 3, 2),
    ):
        assert len(grids_of(pd.concat([table, other]))) == 2, "control: other numbers are shown"


def test_steps_are_columns_and_layers_or_features_rows():
    table = pd.DataFrame({"step": [0, 0, 8, 8], "layer": [0, 1, 0, 1], "similarity_to_last": [0.1, 0.2, 1.0, 1.0]})
    (grid,) = grids_of(table, trained_model="m")
    assert (grid["role"], grid["models"]) == ("steps", ["m"])
    assert (grid["rows"], grid["columns"]) == (["layer 0", "layer 1"], [0, 8])
    assert grid["numbers"][0]["v"] == [0.1, 1.0, 0.2, 1.0]
    features = table.assign(feature="tense").rename(columns={"similarity_to_last": "accuracy"})
    found = [(grid["variant"], grid["rows"]) for grid in grids_of(features)]
    assert found == [("layer 0", ["tense"]), ("layer 1", ["tense"])]
    assert grids_of(table[["step", "similarity_to_last"]])[0]["rows"] == [""]
    assert grids_of(table.assign(other_step=0)) == [], "likeness of every two steps"


def test_rows_of_a_profile_are_named_by_their_column():
    (features,) = grids_of(profile("a", ["tense", "case"], 2))
    copies = profile("a", ["4 bits", "local mixing"], 2).rename(columns={"feature": "calibration_point"})
    (points,) = grids_of(copies)
    assert (features["row_name"], points["row_name"]) == ("feature", "calibration point")
    (pairs,) = grids_of(layer_pairs("a", "b", 2, 2))
    assert pairs["row_name"] == "", "the rows are layers"


STEPS = pd.DataFrame({"step": [1, 1, 2, 2], "layer": [0, 0, 0, 1], "v": [0.1, 0.2, 0.3, 0.4]})
STEPS_OF_FEATURE = STEPS.assign(feature=["tense", "tense", "tense", "case"], layer=0)
LAYERS = pd.DataFrame({"model": "a", "feature": ["x", "x", "x", "y"], "layer": [1, 1, 2, 2], "v": [0.1, 0.2, 0.3, 0.4]})


@pytest.mark.parametrize(
    "table",
    [STEPS, STEPS_OF_FEATURE, LAYERS, LAYERS.assign(feature=[3, 3, 3, 7])],
    ids=["steps", "features", "layers", "ids"],
)
def test_a_repeated_and_a_missing_cell_are_no_full_grid(table):
    """There are as many rows as cells, and yet no value may move into the cell of another one."""
    first, second = grids_of(table)
    assert (first["cells"], first["numbers"][-1]["v"]) == ([0, 1, 3], [0.1, 0.3, 0.4])
    assert (second["numbers"][-1]["v"], second["variant"][-12:]) == ([0.2], "repetition 2")


@pytest.mark.parametrize("column", ["source", "target", "model"])
def test_rows_without_the_name_of_a_model_are_shown(column):
    table = layer_pairs("a", "b", 2, 1)
    if column == "model":
        table = pd.DataFrame({"model": "a", "layer": [0, 1], "value": 0.5})
    table.loc[1, column] = None
    models = [name for grid in grids_of(table) for name in grid["models"]]
    assert models.count("(blank)") == 1


def test_labels_that_differ_stay_different():
    table = pd.DataFrame({"model": "a", "layer": [1.0000001, 1.0000002], "value": [0.1, 0.2]})
    assert grids_of(table)[0]["columns"] == ["1.0000001", "1.0000002"]


WIDE = {f"c{n}": 1 for n in range(450)}
REPEATED = {f"c{n}": [0] * n + [1] + [0] * (449 - n) for n in range(450)}


@pytest.mark.ci_slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "columns",
    [{"source": [f"m{n}" for n in range(450)]} | WIDE, {"source": "a"} | REPEATED],
    ids=["models", "one pair"],
)
def test_a_wide_table_is_read_in_time_that_its_cells_take(columns):
    """It took minutes when the time of a grid was the square of its columns."""
    table = pd.DataFrame({"target": "b", "source_layer": 0, "target_layer": 0} | columns)
    started = time.process_time()
    assert len(grids_of(table)) == 450
    assert time.process_time() - started < 8


def test_what_is_not_finite_is_none_and_cells_may_be_missing():
    table = layer_pairs("a", "b", 2, 2).astype({"low": float})
    table.loc[0, "value"], table.loc[1, "low"] = np.nan, -np.inf
    (grid,) = grids_of(table.iloc[:3])
    assert grid["cells"] == [0, 1, 2]
    assert grid["numbers"][0]["v"][0] is None
    assert grid["numbers"][0]["low"][1] is None
    assert json.dumps(grid, allow_nan=False)


def test_the_first_number_and_its_ends_are_found_by_column():
    table = layer_pairs("a", "b", 2, 2).drop(columns=["value", "low", "high"])
    table = table.assign(loss=1.0, loss_low=0.5, loss_high=2.0, penalty=0.1, other=3, verdict="related")
    (grid,) = grids_of(table)
    assert [number["name"] for number in grid["numbers"]] == ["loss", "penalty", "other"]
    assert grid["numbers"][grid["main"]]["name"] == "penalty"
    assert [number["colours"] for number in grid["numbers"]] == ["falling", "falling", "rising"]
    assert ("low" in grid["numbers"][0], "low" in grid["numbers"][2]) == (True, False)
    assert grid["words"] == [{"name": "verdict", "v": ["related"] * 4}]


def test_the_interval_of_a_value_does_not_depend_on_the_order_of_columns():
    table = layer_pairs("a", "b", 2, 2)
    table.insert(5, "including_massive_activations", 0.3)
    assert list(table)[4:] == ["value", "including_massive_activations", "low", "high"]
    value, other = grids_of(table)[0]["numbers"]
    assert value["low"] == pytest.approx(table["low"].tolist(), rel=1e-5)
    assert "low" not in other


def test_headlines_say_whether_the_values_fall(tmp_path):
    table = layer_pairs("a", "b", 2, 2).assign(gain=1.0)
    for kind, name in (("far", "highest_far"), ("near", "lowest_near")):
        finish(tmp_path, kind, "k", {"table": table}, headlines=[{"name": name, "value": 0.5}])
    grids = report_of(gather([tmp_path]))["grids"]
    colours = {grid["title"]: [number["colours"] for number in grid["numbers"]] for grid in grids}
    assert colours == {"far": ["falling", "signed"], "near": ["rising", "signed"]}
    columns = layer_pairs("a", "b", 2, 2).rename(columns={"value": "procrustes"}).assign(cka=0.5, soft_matching=0.2)
    assert [each["colours"] for each in grids_of(columns)[0]["numbers"]] == ["falling", "rising", "rising"]


@pytest.mark.parametrize(
    "table",
    [
        CLAIMS,
        pd.DataFrame({"source": ["a"], "target": ["b"], "source_layer": [0], "target_layer": [1]}),
        layer_pairs("a", "b", 2, 2).assign(measure="cka", other="r2", rank=0.1),
    ],
    ids=["claims", "no numbers", "two measures"],
)
def test_a_table_of_another_form_is_no_grid(table):
    assert grids_of(table) == []


def test_a_report_joins_a_pairs_results_and_equal_tables(store):
    report = report_of(gather([store]))
    pairs = [grid for grid in report["grids"] if grid["role"] == "pair"]
    assert [(grid["title"], grid["models"]) for grid in pairs] == [("CKA", ["a", "b"]), ("novel", ["b", "a"])]
    kinds = [[report["results"][number]["kind"] for number in grid["results"]] for grid in pairs]
    assert kinds == [["cka", "paper-figure1"], ["novel"]], "the experiment repeats the table of its job"
    (claim,) = report["claims"]
    assert (claim["verdict"], report["results"][claim["result"]]["kind"]) == ("undecided", "paper-figure1")
    (table,) = report["tables"]
    assert (len(table["rows"]), table["length"]) == (MOST_ROWS, 70)
    assert next(entry for entry in report["results"] if entry["kind"] == "cka")["headline"] == "distance 1.25 [1, 1.5]"


def test_a_damaged_result_is_named_and_left_out(store):
    table = store / "cka" / "c1" / "table.csv"
    table.write_text(table.read_text().replace("0", "1"))  # of the same size
    (store / "stray" / "run-1").mkdir(parents=True)
    (store / "cka" / "c2.partial").mkdir()
    report = report_of(gather([store]))
    assert (len(report["results"]), report["unfinished"]) == (5, ["cka/c2"])
    (left_out,) = report["left_out"]
    assert left_out.startswith(f"{table} is damaged: its checksum")


def test_a_page_holds_the_report_and_asks_nothing_of_a_network(store):
    report = report_of(gather([store]))
    page = report_page(report, "results")
    held = data_of(page)
    assert held["grids"] == json.loads(json.dumps(report["grids"]))
    assert len(held["results"]) == 6
    own = re.sub(r'id="data">.*?<', "", page, flags=re.DOTALL)
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", own))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of a format, which nobody asks for"
    assert "default-src 'none'" in page
    assert not re.search(r"<(link|img|script)[^>]+(src|href)=\"(?!data:)", page)
    assert "{{" not in page.replace("${{", "")


def test_names_of_models_cannot_become_markup(tmp_path):
    evil = "</script><b>bold</b><script>alert(1)</script>{{DATA}}"
    finish(tmp_path, "cka", "e", {"table": layer_pairs(evil, "b", 2, 2)}, models=(evil, "b"))
    page = report_page(report_of(gather([tmp_path])), evil)
    assert "<b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;" in page, "control: the title has it, escaped"
    assert page.count("<script") == report_page(report_of(gather([tmp_path])), "plain").count("<script")
    assert data_of(page)["grids"][0]["models"] == [evil, "b"]
    assert data_of(page)["title"] == evil


def call(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    """Call `thinkalike report`; returns the exit status, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["thinkalike", "report", *map(str, words)])
    status = 0
    try:
        cli.main()
    except SystemExit as end:
        status = int(end.code or 0)
    return status, *capsys.readouterr()


def test_the_command_writes_a_page_and_says_what_it_left_out(store, tmp_path, monkeypatch, capsys):
    (store / "loss" / "l1" / "table.csv").unlink()
    status, out, err = call(monkeypatch, capsys, store, "--out", tmp_path / "page.html")
    assert (status, out) == (0, f"page: {tmp_path / 'page.html'}\n")
    assert f"left out: {store}/loss/l1/table.csv is missing" in err
    assert data_of((tmp_path / "page.html").read_text())["title"] == "results"


@pytest.mark.parametrize("earlier", ["a page", "a link", "nothing"])
def test_a_page_that_cannot_be_written_leaves_the_earlier_one(earlier, store, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "pages"
    folder.mkdir()
    page = folder / "page.html"
    if earlier == "a link":
        page.symlink_to(tmp_path / "elsewhere.html")
    if earlier != "nothing":
        page.write_text("the earlier page")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        status, out, err = call(monkeypatch, capsys, store, "--out", page)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (status, out) == (1, "")
    assert err == f"error: --out {page} cannot be written: File too large; choose --out PAGE\n"
    assert [path.name for path in folder.iterdir()] == ([] if earlier == "nothing" else ["page.html"])
    assert earlier == "nothing" or page.read_text() == "the earlier page"

    assert call(monkeypatch, capsys, store, "--out", page)[0] == 0
    assert data_of(page.read_text())["title"] == "results", "control: it fits"
    assert page.is_symlink() == (earlier == "a link")


def test_a_page_can_be_written_into_a_pipe(store, tmp_path, monkeypatch, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as threads:
        page = threads.submit(pipe.read_text)
        assert call(monkeypatch, capsys, store, "--out", pipe)[0] == 0
    assert data_of(page.result())["title"] == "results"
    assert pipe.is_fifo()


def test_a_full_disk_is_said_to_be_full(store, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.replace", full)
    page = tmp_path / "page.html"
    status, _, err = call(monkeypatch, capsys, store, "--out", page)
    assert (status, page.exists()) == (1, False)
    assert "No space left on device; free some space, or choose --out PAGE elsewhere" in err


@pytest.mark.parametrize("words", [["none"], ["empty"], ["results", "kind=zebra"]])
def test_a_selection_without_results_is_refused(words, store, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    status, out, err = call(monkeypatch, capsys, *words)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert words[-1] in err


def test_a_page_of_a_folder_whose_name_looks_like_a_setting(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    store.rename(tmp_path / "a=b")
    monkeypatch.setattr(sys, "argv", ["thinkalike", "a=b"])
    cli.report()
    assert "6 results" in capsys.readouterr().err


def test_a_store_beside_others_is_not_ignored(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, _, err = call(monkeypatch, capsys, "results", "store=empty")
    assert (status, err.count("results and empty are two stores")) == (1, 1)


@pytest.mark.parametrize("foreign", ["a table beside", "a link", "another form", "a table that is none"])
def test_what_is_not_sealed_in_a_result_is_not_shown(foreign, store, tmp_path):
    folder, secret = store / "cka" / "c1", tmp_path / "secret.csv"
    secret.write_text("token\nabcdef\n")
    if foreign == "a table beside":
        (folder / "x.csv").write_text(secret.read_text())
    elif foreign == "a link":
        (folder / "x.csv").symlink_to(secret)
    elif foreign == "another form":
        (folder / "result.json").write_text("[]")
    else:
        (folder / "table.csv").write_bytes(b"\x00\xff" * 9)
    if foreign in ("another form", "a table that is none"):
        seal(folder)  # as another program might
    report = report_of(gather([store]))
    assert "abcdef" not in json.dumps(report)
    assert len(report["results"]) == (6 if "a " in foreign and "none" not in foreign else 5)
    assert any(str(folder) in line for line in report["left_out"]) == (len(report["results"]) == 5)


@pytest.mark.parametrize(
    ("text", "whole"),
    [("python train.py model=a 'layers=[[0, 1]]'", True), ("thinkalike analyze measure=cka", True),
     ("python train.py a=1; curl x | sh", False), ("python train.py 'a", False), ("sh -c 'python train.py'", False),
     ("python train.py a=$(id)", False), ("thinkalike diff a b", False), ("python /tmp/train.py seed=1", False),
     ("thinkalike train --config-dir=there seed=1", False), ("thinkalike train -cp there", False),
     ("thinkalike train model=./mine layers=all +model.architecture.a=1 model@target=gpt2", True),
     ("thinkalike train model=/home/someone/model", False), ("thinkalike train model=../model", False),
     ("thinkalike train model=~/model", False), ("thinkalike train 'data.files=[a.txt,/etc/passwd]'", False),
     ("thinkalike train stitch.kind=mine.py:f", False), ("thinkalike train hydra.run.dir=x", False),
     ("thinkalike train ++hydra.verbose=true", False), ("thinkalike train 'seed=${oc.env:HOME}'", False),
     ("thinkalike train model.hub_id=https://x.org", False), ("thinkalike train 'store=a\nb'", False)],
)  # fmt: skip
def test_a_command_is_shown_if_it_is_one_whole(text, whole):
    assert is_command(text) == whole


def test_titles_are_those_of_the_instruments():
    for kind, entry in MEASURES.items():
        assert title_of(kind) == (entry.title or kind)
        assert getattr(instrument(entry), "name", title_of(kind)) == title_of(kind)


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "-2"], "number", [1, -2]),
        (["1", ""], "float", [1.0, None]),
        (["1.5", "inf"], "float", [1.5, float("inf")]),
        (["nan", ""], "float", [None, None]),
        (["1.#IND", "2"], "float", [None, 2.0]),
        (["1e3", "2"], "float", [1000.0, 2.0]),
        (["0.1234567890123456789", "1"], "float", [0.1234567890123456789, 1.0]),
        (["True", "False"], "truth", [True, False]),
        (["True", ""], "truth", [True, None]),
        (["1", "a"], "text", ["1", "a"]),
        (["1_0", "2"], "text", ["1_0", "2"]),
        (["١", "٢"], "text", ["١", "٢"]),
        (["a", "NA", ""], "text", ["a", "NA", None]),
        (["null", "the"], "text", ["null", "the"]),
        (["12345678901234567890", "1"], "text", ["12345678901234567890", "1"]),
        (["9007199254740993", ""], "text", ["9007199254740993", None]),
        (["9007199254740992", ""], "float", [9007199254740992.0, None]),
        (["9007199254740993", "0.5"], "text", ["9007199254740993", "0.5"]),
        (["007", "1e5"], "text", ["007", "1e5"]),
        (["007", "12"], "text", ["007", "12"]),
        (["0", "0.5"], "float", [0.0, 0.5]),
    ],
)
def test_a_cell_is_one_value_in_python_and_on_a_page(cells, kind, values):
    """A word among words is a token, even if it is NA or null; a digit of another script is no number."""
    table = Columns.parsed("a,b\n" + "".join(f"{cell},x\n" for cell in cells))
    assert (table.kinds["a"], table.values["a"]) == (kind, values)
    read = table.frame()["a"]
    assert [None if value != value else value for value in read.tolist()] == values
    assert pd.api.types.is_numeric_dtype(read) == (kind in ("number", "float") or values == [True, False])


@pytest.mark.parametrize("number", ["1e308", "-1.5e300", "1e400"])
def test_numbers_whose_differences_are_infinite_are_refused(number):
    """The axis of a figure ended in a traceback of matplotlib."""
    with pytest.raises(ForeignFileError, match=f"the number {number}"):
        Columns.parsed(f"a\n0.5\n{number}\n")
    assert Columns.parsed("a\n0.5\n-inf\n1e299\n").values["a"] == [0.5, -math.inf, 1e299]


@pytest.mark.ci_slow
@pytest.mark.timeout(60)
def test_a_table_of_many_pairs_is_rows(tmp_path):
    """A page draws a grid for each two models: with 30,000 of them neither it nor its reader would come to an end."""
    names = [f"m{number}" for number in range(30_000)]
    table = pd.DataFrame({"source": names, "target": "b", "source_layer": 0, "target_layer": 0, "value": 0.5})
    assert len(grids_of(table[:MOST_GRIDS])) == MOST_GRIDS, "control"
    finish(tmp_path, "cka", "c", {"table": table})
    report = report_of(gather([tmp_path]))
    assert (len(report["grids"]), report["tables"][0]["length"]) == (0, 30_000)


def test_half_a_letter_does_not_end_a_page(tmp_path):
    finish(tmp_path, "cka", "c", {"table": layer_pairs("a", "b", 2, 2)}, models=("a\ud800", "b"))
    page = report_page(report_of(gather([tmp_path])), "t\ud800")
    assert data_of(page)["results"][0]["models"] == ["a?", "b"]


def test_a_title_that_looks_like_a_part_of_the_page_stays_a_title(store):
    page = report_page(report_of(gather([store])), "{{SCRIPT}}{{DATA}}")
    assert "<title>{{SCRIPT}}{{DATA}} " in page


def seen_in_node(page: str, folder: Path) -> dict:
    """Return the texts of a page whose scripts ran, and the number of its nodes."""
    if not shutil.which("node"):
        pytest.skip("needs node")
    (folder / "page.html").write_text(page, encoding="utf-8")
    script = Path(__file__).with_name("page_in_node.js")
    words = ["node", str(script), str(folder / "page.html")]
    return json.loads(subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout)


def diagonal(count: int, **columns) -> pd.DataFrame:
    """Return a table of layer pairs in which each layer is with itself alone."""
    return pd.DataFrame(
        {"source": "a", "target": "b", "source_layer": range(count), "target_layer": range(count)} | columns
    )


# what a few rows stand for, and whether a page draws all of it
LARGE = {
    "steps": (pd.DataFrame({"step": range(200_000), "loss": 0.5}), 0),
    "layers": (pd.DataFrame({"model": "a", "layer": range(200_000), "value": 0.5}), 0),
    "features": (pd.DataFrame({"model": "a", "layer": 0, "feature": [f"f{n}" for n in range(9_000)], "value": 0.5}), 0),
    "layer pairs": (diagonal(2_000, value=0.5), 0),
    "layer pairs that fit": (diagonal(300, value=0.5), 1),
    "features of one layer": (
        pd.DataFrame({"model": "a", "layer": range(2_000), "feature": [f"f{n}" for n in range(2_000)], "value": 0.5}),
        0,
    ),
    "features of one model": (
        pd.DataFrame(
            {"model": [f"m{n}" for n in range(600)], "layer": 0, "feature": [f"f{n}" for n in range(600)], "value": 0.5}
        ),
        600,
    ),
    "models": (
        pd.DataFrame(
            {
                "source": [f"m{n}" for n in range(900)],
                "target": [f"n{n}" for n in range(900)],
                "source_layer": 0,
                "target_layer": 0,
                "value": 0.5,
            }
        ),
        900,
    ),
}


@pytest.mark.timeout(90)
@pytest.mark.parametrize("name", with_slow(LARGE, *set(LARGE).difference(["layer pairs that fit"])))
def test_a_page_of_large_tables_comes_to_an_end(name, store, tmp_path):
    table, grids = LARGE[name]
    finish(store, "large", "l1", {"table": table}, models=("a", "b"), date="2099-01-01T00:00:00+00:00")
    report = report_of(gather([store]))
    own = [grid for grid in report["grids"] if grid["title"] == "large"]
    assert len(own) == grids
    assert grids or report["tables"][-1]["length"] == len(table), "its rows are shown"
    seen = seen_in_node(report_page(report, "large"), tmp_path)
    assert "7 results" in seen["counts"]
    assert "cannot be read" not in seen["counts"]
    assert seen["made"] < 1_500_000


def test_grids_of_many_results_are_drawn_within_bounds(tmp_path):
    """Each grid is small, and the axes of a pair of models are those of all its grids together."""
    for number in range(12):
        layers = range(300 * number, 300 * (number + 1))
        table = diagonal(300, value=0.5).assign(source_layer=layers, target_layer=layers)
        finish(tmp_path / "store", "large", f"l{number}", {"table": table})
    seen = seen_in_node(report_page(report_of(gather([tmp_path / "store"])), "large"), tmp_path)
    assert "12 results" in seen["counts"]
    assert seen["pair"].count("Not drawn") >= 12
    assert seen["made"] < 100_000


def test_numbers_of_drawings_have_a_minus_sign_and_those_of_tables_a_hyphen(tmp_path):
    table = layer_pairs("a", "b", 2, 2).assign(value=-0.25, low=-0.5, high=1e-7)
    finish(tmp_path / "store", "large", "l1", {"table": table})
    seen = seen_in_node(report_page(report_of(gather([tmp_path / "store"])), "large"), tmp_path)
    assert "−0.25" in seen["pair"]
    assert "[−0.5, 1e−7]" in seen["pair"]
    assert "-0.25" in seen["pair"]


@pytest.mark.parametrize(
    ("settings", "titles"),
    [
        (({}, {"data": {"name": "text"}}), ["large", "large (data.name=text)"]),
        (({"layers": [0]}, {"layers": [1]}), ["large (layers=[0])", "large (layers=[1])"]),
        (({}, {}), ["large (l0)", "large (l1)"]),
        (({},), ["large"]),
    ],
)
def test_titles_say_how_results_of_one_measure_differ(settings, titles, tmp_path):
    """Two matrices were both titled "ruler", and their settings were folded."""
    for number, of_result in enumerate(settings):
        finish(tmp_path / "store", "large", f"l{number}", {"table": layer_pairs("a", "b", 2, 2)}, settings=of_result)
    seen = seen_in_node(report_page(report_of(gather([tmp_path / "store"])), "large"), tmp_path)
    for title in titles:
        assert seen["pair"].count(f"{title} ") >= 2, "above the matrix and above its numbers"


@pytest.mark.parametrize("result", [99, 0, "", "constructor", -1])
def test_a_claim_stays_under_its_own_result(result, store, tmp_path):
    """A column `result` would overwrite the number of the result that holds the claim."""
    odd = pd.DataFrame({"claim": ["spoof"], "verdict": ["constructor"], "result": [result], "__proto__": [1]})
    finish(store, "paper-figure2", "p2", {"table": TABLE, "claims": odd}, models=())
    report = report_of(gather([store]))
    (claim,) = [claim for claim in report["claims"] if claim["claim"] == "spoof"]
    assert report["results"][claim["result"]]["kind"] == "paper-figure2"
    assert set(claim) == {"claim", "verdict", "result"}
    seen = seen_in_node(report_page(report, "claims"), tmp_path)
    assert ("7 results" in seen["counts"], "spoof" in seen["claims"]) == (True, True)


def test_more_claims_than_a_page_holds_are_rows(store):
    many = pd.DataFrame({"claim": ["x"] * 1001, "verdict": "holds"})
    finish(store, "paper-figure2", "p2", {"table": TABLE, "claims": many}, models=())
    report = report_of(gather([store]))
    assert len(report["claims"]) == 1
    assert 1001 in [table["length"] for table in report["tables"]]


def test_a_table_that_ends_in_an_error_is_left_out_alone(store, monkeypatch):
    """Whatever a table of a stranger causes, the results beside it are shown."""
    parsed = grids.grids_of

    def broken(table, *more):
        if table.has("loss"):
            raise KeyError("loss")
        return parsed(table, *more)

    monkeypatch.setattr("thinkalike.report.reports.grids_of", broken)
    report = report_of(gather([store]))
    assert len(report["results"]) == 5
    assert report["left_out"] == [f"{store}/loss/l1 cannot be read (KeyError: 'loss')"]
