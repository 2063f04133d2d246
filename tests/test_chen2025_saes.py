"""The experiment on autoencoders: what is claimed of planted courses of their starts."""

import pandas as pd
import pytest

from conftest import composed
from test_chen2025 import finished
from test_sae_savings import course
from thinkalike import papers
from thinkalike.instruments.sae.fitting import break_even_table, savings_table
from thinkalike.job import Outcome
from thinkalike.papers.chen2025_sae import TRANSFERS, _sae
from thinkalike.papers.experiment import Case, job_of

SLOWER, SAVES_HALF = 0.5, 2.0  # speeds beside that of a random start


def concluded(tmp_path, speed):
    """What the experiment concludes where transferred starts are this much as fast as random ones."""
    courses = [course("random", 1.0), course("least_squares", 1.2), course("transferred", speed)]
    results = {}
    for number, transfer in enumerate(TRANSFERS["mini"]):
        table, saved = savings_table(courses)
        folder = tmp_path / str(number)
        results[transfer.label] = finished(folder, pd.DataFrame({"start": ["random"]}), saved=saved.numpy())
        for name, each in {"savings": table, "break_even": break_even_table(courses), "curves": table}.items():
            each.to_csv(folder / f"{name}.csv", index=False)
    config = composed("experiment=chen2025/sae", "scale=mini", door="analyze")
    return _sae(Case(config, [], results))


@pytest.mark.parametrize(
    ("speed", "verdicts"),
    [
        (SAVES_HALF, ["holds", "holds", "holds", "holds", "does not hold", "holds"]),
        (SLOWER, ["does not hold"] * 4 + ["holds", "does not hold"]),
    ],
)
def test_starts_that_save_are_told_from_those_that_do_not(tmp_path, speed, verdicts):
    found = concluded(tmp_path, speed)
    assert [claim.verdict for claim in found.claims] == verdicts
    assert found.claims[0].claim.startswith("gpt2-mini:2 → gpt2-mini-s1:2: a transferred start saves more than 35%")
    assert ("never get there" in found.claims[0].numbers) == (speed == SLOWER)
    assert "hold for all 2 together (Bonferroni)" in found.claims[0].numbers
    table = Outcome(found.table, {}, tables=found.tables, blank=found.blank).guarded().tables["break_even"]
    never = table[table["start"] == "transferred"]["break_even_tokens"].isna()
    assert never.all() == (speed == SLOWER), "a start that never breaks even leaves blank cells"


@pytest.mark.slow
def test_it_rests_on_a_job_for_each_transfer():
    config = composed("experiment=chen2025/sae", "scale=mini", door="analyze")
    experiment = papers.experiment_named("chen2025/sae")
    jobs = [job_of(config, part) for part in experiment.parts(experiment.case(config))]
    assert [(job.model.name, job.sae.layer, job.sae.source) for job in jobs] == [
        ("gpt2-mini-s1", 2, "gpt2-mini"),
        ("neox-6l-mini", 2, "neox-5l-mini"),
        ("neox-6l-mini", 2, "neox-3l-mini"),
    ]
    assert {job.sae.seeds for job in jobs} == {5}
