"""Every row of the studies' registry names a class that is there, and tests of pages know its name."""

import pytest

import pages
from thinkalike.catalogue import SUBJECTS, conf_folders
from thinkalike.config import MEASURES, TASKS, instrument
from thinkalike.contrib.registry import STUDIES
from thinkalike.job import Instrument

ENTRIES = (*STUDIES.tasks, *STUDIES.measures, *STUDIES.subjects)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_row_names_an_instrument(entry):
    named = entry.load()
    assert named.__module__ == entry.module
    assert isinstance(instrument(entry), Instrument)
    assert entry in {*TASKS.values(), *MEASURES.values(), *SUBJECTS.values()}


def test_settings_folders_and_experiments_are_there():
    for place in STUDIES.settings.values():
        assert place.load().__module__ == place.module
    assert (conf_folders()["contrib"] / "experiment").is_dir()
    assert STUDIES.experiment.load()("brown2023/figure1").name == "brown2023/figure1"


def test_pages_know_the_names_that_contrib_adds():
    names = {f"task={entry.kind}" for entry in STUDIES.tasks} | {f"measure={entry.kind}" for entry in STUDIES.measures}
    assert names == {word for word in pages.OF_CONTRIB if word.startswith(("task=", "measure="))}
