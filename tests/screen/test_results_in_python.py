"""What a result says in Python: the screen, its sentences, a table that begins with what matters, and one figure."""

import base64
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import thinkalike as ta
from conftest import with_ci_slow, with_slow
from thinkalike import open_result
from thinkalike.advice import at_command_line
from thinkalike.ranking import MOST_COLUMNS, ranked_layer_pairs, ranked_rows, shortened
from thinkalike.screen import gathered_sentences, show_map, show_table, show_text, text_column
from thinkalike.screen.maps import MARK, SHADES
from thinkalike.screen.tables import Table

A, B = "gelu-3l-mini", "solu-3l-mini"
SMALL = {
    "stitch": lambda **more: ta.stitch(A, B, steps=3, tokens_per_step=256, evaluation_tokens=2048, **more),
    "cka": lambda **more: ta.compare(A, B, batches=2, tokens_per_batch=128, **more),
    "distance": lambda **more: ta.compare(A, f"{A}-s1", measure="distance", batches=2, tokens_per_batch=128, **more),
    "jsd": lambda **more: ta.compare(A, B, measure="jsd", batches=2, tokens_per_batch=128, **more),
    "ruler": lambda **more: ta.compare(A, B, measure="ruler", words=8192, layers=[[0, 0], [2, 2]], **more),
    "mlem": lambda **more: ta.mlem("gpt2-mini", sample=60, features=["Number"], folds=2, references=0, **more),
    "rsa": lambda **more: ta.rsa(["gpt2-mini", "bert-mini"], stimuli="crossed", sample=40, layers=[0, 1], **more),
    "diff": lambda **more: ta.diff(A, f"{A}-s1", tokens=128, tokens_per_part=64, outputs=0, **more),
    "lineage": lambda **more: ta.lineage("bert-mini", "bert-mini-nli", **more),
}  # fmt: skip
FIRST = {  # by what rows are sorted, and whether the smallest comes first
    "stitch": ("penalty", True),
    "cka": ("value", False),
    "distance": ("value", False),
    "jsd": ("value", True),
    "ruler": ("value", False),
    "mlem": ("importance", False),
    "rsa": ("value", False),
    "diff": ("mean_effect", False),
    "lineage": ("p", True),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A small result of each instrument, in a store; each is computed when a test asks for it."""
    store = tmp_path_factory.mktemp("store")
    computed = {}

    def result_of(kind):
        if kind not in computed:
            computed[kind] = SMALL[kind](store=store)
        return computed[kind]

    return result_of


# others go the same way; that of a diff takes seconds
@pytest.mark.parametrize(
    "kind", [pytest.param("cka", marks=pytest.mark.ci_slow), "mlem", pytest.param("diff", marks=pytest.mark.slow)]
)
def test_print_of_a_result_is_the_screen_of_its_job(kind, cli, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = {
        "cka": [f"model={A}", f"model@target={B}", "measure.batches=2", "measure.tokens_per_batch=128"],
        "mlem": ["model=gpt2-mini", "stimuli.sample=60", "stimuli.features=[Number]", "measure.folds=2",
                 "measure.references=0"],
        "diff": [f"model={A}", f"model@target={A}-s1", "measure.tokens=128", "measure.tokens_per_part=64",
                 "measure.outputs=0"],
    }[kind]  # fmt: skip
    done = cli("analyze.py", f"measure={kind}", *words, f"store={cli.folder}/kept", env={"COLUMNS": "80"})
    stored = SMALL[kind](store=cli.folder / "kept")
    assert stored.folder == done.result.folder, "control: it is the same stored job"
    capsys.readouterr()
    with at_command_line():  # whose words the screen has
        print(stored)
    assert capsys.readouterr().out == done.stdout
    screen = str(stored) + "\n"
    in_memory = str(SMALL[kind]())
    assert in_memory.splitlines()[:-1] == screen.splitlines()[:-1]
    assert in_memory.splitlines()[-1] == "not kept: this result is in memory; result.save(FOLDER) keeps it"


@pytest.mark.parametrize("kind", with_ci_slow(SMALL, *(set(SMALL) - {"ruler"})))
def test_a_table_begins_with_what_was_asked_for_and_fits(kind, results):
    result = results(kind)
    table, details = result.table, result.details
    column, is_smallest_first = FIRST[kind]
    assert len(table.columns) <= MOST_COLUMNS
    assert column in table
    across = table
    if {"source", "target"} <= set(table):
        across = table[table["source"] != table["target"]]
        assert across.index.tolist() == table.index[: len(across)].tolist(), "pairs of two models come first"
    values = across[column].dropna().tolist()
    assert values == sorted(values, reverse=not is_smallest_first)
    assert len(values) == 1 or kind == "lineage" or values[0] != values[-1], "control: there is an order"
    pd.testing.assert_frame_equal(table.sort_index(), details[list(table)])
    assert set(result.tables["table"]) <= set(details)


@pytest.mark.ci_slow
@pytest.mark.parametrize("kind", with_slow(SMALL, "ruler"))
def test_a_summary_has_the_sentences_and_neither_tables_nor_maps(kind, results):
    result = results(kind)
    words = re.sub(r"\s+", " ", str(result))
    assert result.summary
    for sentence in result.summary.splitlines():
        assert re.sub(r"\s+", " ", sentence) in words
    assert not set("┃│━" + SHADES.strip() + MARK) & set(result.summary)


@pytest.mark.drawn
@pytest.mark.parametrize("kind", with_slow(["cka", "diff", "rsa"], "cka", "diff"))
def test_a_notebook_shows_sentences_figure_and_table_and_no_map_of_characters(kind, results):
    from matplotlib import pyplot

    result = results(kind)
    pyplot.close("all")  # what earlier tests left open
    page = result._repr_html_()
    assert not set(SHADES.strip() + MARK) & set(page)
    (image,) = re.findall('src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(image).startswith(b"\x89PNG")
    assert pyplot.get_fignums() == [], "a notebook would show an open figure a second time"
    assert page.count("<table") == 1
    assert f"<th>{result.table.columns[0]}</th>" in page
    assert f"results: {result.folder}" in page
    assert result.summary.splitlines()[0].split("‖")[0].split("'")[0][:20] in page


def test_a_result_in_memory_says_in_a_notebook_that_it_is_not_kept(tmp_path):
    result = SMALL["lineage"]()
    assert "result.save(FOLDER)" in result._repr_html_()
    assert "result.save(FOLDER)" not in result.save(tmp_path / "mine")._repr_html_(), "control"
    pd.testing.assert_frame_equal(open_result(tmp_path / "mine").table, result.table)


def test_what_is_gathered_is_not_printed(capsys):
    with gathered_sentences() as sentences:
        show_text("A sentence " + 20 * "that is long ")
        show_table(Table("A table", [text_column("name", ["cell"])]))
        show_map(pd.DataFrame(np.eye(2)))
    assert len(sentences) == 1
    assert capsys.readouterr().out == ""
    show_text("A sentence.")
    show_map(pd.DataFrame(np.eye(2)))
    assert "A sentence.\n" in capsys.readouterr().out, "control: afterwards it is printed again"


def test_rows_without_a_value_or_of_one_layer_come_last():
    table = pd.DataFrame(
        {"source": list("aaab"), "target": list("abab"), "source_layer": [0, 0, 1, 0], "target_layer": [0, 0, 2, 0]}
    ).assign(value=[1.0, 0.2, 0.9, 1.0])
    assert ranked_layer_pairs(table).index.tolist() == [1, 2, 0, 3]
    assert ranked_layer_pairs(table.drop(columns="target")).index.tolist() == [0, 1, 2, 3]
    assert ranked_rows(pd.DataFrame({"x": [1.0, np.nan, 3.0]}), "x").index.tolist() == [2, 0, 1]
    assert ranked_rows(pd.DataFrame({"x": [1.0, np.nan, 3.0]}), "x", smallest_first=True).index.tolist() == [0, 2, 1]
    assert ranked_rows(table, "of another version").index.tolist() == [0, 1, 2, 3]


def test_a_wide_table_loses_the_intervals_of_further_columns_first():
    wide = pd.DataFrame(0.0, index=[0], columns=[*"abcdefghijkl", "value", "low", "high", "b_low", "b_high"])
    assert list(shortened(wide)) == [*"abcdefghijkl", "value", "low", "high"]
    assert list(shortened(wide[[*"abc"]])) == [*"abc"]
    many = pd.DataFrame(0.0, index=[0], columns=[f"c{number}" for number in range(40)])
    assert len(shortened(many).columns) == MOST_COLUMNS


def test_the_package_reads_the_whole_table_in_its_order():
    """`Result.table` is for readers: it is sorted, and lacks columns."""
    found = {}
    for path in Path(ta.__file__).parent.rglob("*.py"):
        lines = [line for line in path.read_text().splitlines() if re.search(r"\bresult\.table\b", line)]
        reading = [line for line in lines if not re.search(r">>>|`|rows of|numbers are in", line)]
        if reading:
            found[path.name] = reading
    assert not found
