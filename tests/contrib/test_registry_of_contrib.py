"""Every row of the studies' registry names a class that is there, and tests of pages know its name."""

import pandas as pd
import pytest

import pages
from stores import finish
from thinkalike import open_result
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


@pytest.mark.parametrize("kind", ["pretraining", "sae"])
def test_numbers_of_documents_that_were_stored_have_their_present_names(tmp_path, kind):
    table = pd.DataFrame({"model": ["a"], "effective_documents": [12.5]})
    scalars = {"documents": 14.0, "effective_documents": 12.5}
    result = open_result(finish(tmp_path, kind, "old", {"table": table}, scalars=scalars).folder)
    assert result.scalars == {"documents": 14.0, "effective_sample_size": 12.5}
    assert list(result.details) == ["model", "effective_sample_size"]
