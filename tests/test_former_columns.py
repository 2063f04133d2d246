"""Results that an earlier version stored are read under their present names, wherever they are read."""

import numpy as np
import pandas as pd
import pytest

from stores import finish
from thinkalike import open_result
from thinkalike.catalogue import FORMER_COLUMNS
from thinkalike.former_columns import present_column, present_table
from thinkalike.report.reports import gather, report_of

RULER = pd.DataFrame({
    "source": ["a"], "target": ["b"], "source_layer": [1], "target_layer": [1], "value": [0.5], "low": [0.4],
    "high": [0.6], "there": [0.45], "back": [0.55], "beyond": [0.2], "beyond_low": [0.1], "beyond_high": [0.3],
    "source_mixing": [0.1], "source_bits": [3.5], "source_bits_low": [3.4], "source_bits_high": [3.6],
})  # fmt: skip
RUNGS = pd.DataFrame({"model": ["a"], "layer": [1], "rung": ["3 bits"], "bits": [3.0], "value": [0.4], "there": [0.4]})
DIFF = pd.DataFrame(
    {"component": ["MLP"], "layer": [0], "weights": [0.1], "goes": [0.5], "share": [0.4], "beyond": 2.0}
)
DIRECTIONS = pd.DataFrame({"layer": [0], "share": [0.3]})
WORDS = pd.DataFrame({"word": ["he"], "beyond": [0.3]})


def renamed(names):
    """Return the columns of a table that were renamed, by what they were called, by hand."""
    return {former: present for present, former in names.items()}


def test_tables_and_columns_and_numbers_have_their_present_names(tmp_path):
    scalars = {"documents": 58.0, "effective_documents": 47.7}
    headlines = [{"name": "shared", "value": 0.5, "low": 0.4, "high": 0.6}]
    folder = finish(
        tmp_path, "ruler", "old", {"table": RULER, "rungs": RUNGS}, scalars=scalars, headlines=headlines
    ).folder
    result = open_result(folder)
    assert result.scalars == {"documents": 58.0, "effective_sample_size": 47.7}
    assert [headline.name for headline in result.headlines] == ["residual_r2"]
    assert list(result.tables) == ["calibration_points", "table"]
    assert list(result.tables["calibration_points"]) == [
        "model", "layer", "calibration_point", "bits", "value", "value_forward",
    ]  # fmt: skip
    expected = RULER.rename(columns=renamed(FORMER_COLUMNS["ruler"])).rename(columns=with_ends(FORMER_COLUMNS["ruler"]))
    pd.testing.assert_frame_equal(result.details, expected)
    assert result.details["above_local_mixing_low"].item() == 0.1
    assert (folder / "rungs.csv").read_text().startswith("model,layer,rung"), "files stay as they are"


def with_ends(names):
    """Return the former and the new names of the ends of intervals."""
    return {f"{former}{end}": f"{present}{end}" for present, former in names.items() for end in ("_low", "_high")}


def test_one_name_may_have_stood_for_several_things(tmp_path):
    tables = {"table": DIFF, "directions": DIRECTIONS, "words": WORDS}
    result = open_result(finish(tmp_path, "diff", "old", tables, scalars={"parts": 1.0}).folder)
    assert list(result.details) == [
        "component", "layer", "relative_weight_change", "restoring_effect", "mean_effect",
        "weight_change_beyond_control",
    ]  # fmt: skip
    assert list(result.tables["directions"]) == ["layer", "share_of_change"]
    assert list(result.tables["words"]) == ["word", "change_beyond_null"]
    assert result.scalars == {"modules": 1.0}


def test_arrays_follow(tmp_path):
    result = open_result(finish(tmp_path, "r2", "old", {"table": RULER}, arrays={"plain": np.ones(3)}).folder)
    assert list(result.arrays) == ["r2_forward"]


def test_pages_read_them_too(tmp_path):
    finish(tmp_path, "ruler", "old", {"table": RULER, "rungs": RUNGS}, scalars={"documents": 1.0})
    report = report_of(gather([tmp_path]))
    grid = next(grid for grid in report["grids"] if grid["title"] == "residual R² of the ruler")
    names = [number["name"] for number in grid["numbers"]]
    assert "above_local_mixing" in names
    assert not {"beyond", "there", "source_bits"} & set(names)


def test_a_column_under_both_names_is_damage(tmp_path):
    table = DIRECTIONS.assign(share_of_change=0.1)
    with pytest.raises(Exception, match="a column twice"):
        open_result(finish(tmp_path, "diff", "old", {"table": DIFF, "directions": table}).folder).tables  # noqa: B018


def test_results_of_other_kinds_keep_their_names(tmp_path):
    result = open_result(finish(tmp_path, "mine", "old", {"table": DIRECTIONS}, scalars={"parts": 1.0}).folder)
    assert (list(result.table), result.scalars) == (["layer", "share"], {"parts": 1.0})


@pytest.mark.parametrize("kind", sorted(FORMER_COLUMNS))
def test_no_present_name_is_a_former_name_too(kind):
    """Otherwise a new result would be read under a wrong name."""
    names = FORMER_COLUMNS[kind]
    for present in names:
        scope, _, column = present.rpartition(".")
        if column == "csv":
            assert present_table(scope, names) == scope
        else:
            assert present_column(column, names, scope) == column
            assert present_column(f"{column}_low", names, scope) == f"{column}_low"
