"""The joint table of a sweep: what was swept, beside what came out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from test_listing import planted
from thinkalike.config import Made
from thinkalike.listing import show_sweep, shown

BOTH = ("gelu-3l-mini", "solu-3l-mini")


@pytest.fixture
def made(tmp_path) -> list[Made]:
    """Three jobs of a sweep over models and steps; the last differs in its steps alone."""
    logger = {"kind": "csv", "project": "mine", "entity": None, "group": None}
    jobs = []
    for number, (model, steps) in enumerate([("gelu-3l-mini", 10), ("solu-3l-mini", 10), ("solu-3l-mini", 20)]):
        folder = planted(tmp_path, "stitching", str(number), BOTH, value=0.25 * (number + 1))
        jobs.append(Made(number, [f"model={model}", f"stitch.steps={steps}", "seed=3"], str(folder), logger))
    return jobs


def test_it_has_what_was_swept_and_the_headlines(made, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    show_sweep(made)
    shown = capsys.readouterr().out
    assert "jobs of the sweep: 3" in shown
    for text in ("model=gelu-3l-mini", "stitch.steps=20", "score 0.75 [0.65, 0.85]"):
        assert text in shown
    assert "seed" not in shown, "all jobs have the same"
    assert max(map(len, shown.splitlines())) <= 80


def test_in_wandb_it_is_a_run_of_the_group_where_a_job_was_logged_there(made, monkeypatch):
    published = []
    monkeypatch.setattr(shown, "publish_table", lambda *given: published.append(given))
    show_sweep(made)
    assert not published
    show_sweep([*made[:2], made[2]._replace(logger=made[2].logger | {"kind": "wandb"})])
    ((config, about, table),) = published
    assert (config.kind, config.project, about.kind) == ("wandb", "mine", "sweep")
    assert about.store == Path(made[0].folder).parent.parent
    assert table["stitch.steps"].tolist() == ["10", "10", "20"]
    assert table["score"].tolist() == [0.25, 0.5, 0.75]
    assert table["folder"].tolist() == [each.folder for each in made]


def test_a_result_that_is_gone_is_left_out_with_a_word(made, capsys, caplog):
    shutil.rmtree(made[1].folder)
    show_sweep(made)
    assert "jobs of the sweep: 2" in capsys.readouterr().out
    assert f"left out of the sweep's table: {made[1].folder} is damaged" in caplog.text
    for each in made:
        shutil.rmtree(each.folder, ignore_errors=True)
    show_sweep(made)
    assert capsys.readouterr().out == ""
