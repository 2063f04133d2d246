"""similarity=true: whether states of stitched layers are similar, by the ruler's numbers of the same words."""

import numpy as np
import pandas as pd
import pytest

import tiny
from conftest import composed
from thinkalike.instruments import run_job
from thinkalike.instruments.ruler import words as words_of_ruler
from thinkalike.models.load import load_model
from thinkalike.models.rounding import rounded_copy

IN_RULER = {
    "residual_r2": "value",
    "residual_r2_low": "low",
    "residual_r2_high": "high",
    "residual_r2_forward": "value_forward",
    "residual_r2_backward": "value_backward",
    "above_local_mixing": "above_local_mixing",
    "above_local_mixing_low": "above_local_mixing_low",
    "above_local_mixing_high": "above_local_mixing_high",
}  # what the ruler calls the columns of a stitch


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny model, a copy of 4 bits, and a model of random weights."""
    root = tmp_path_factory.mktemp("models")
    base = load_model(tiny.write_mini(root / "base"))
    tiny.write_mini(root / "copy", module=rounded_copy(base, 4).module)
    tiny.write_mini(root / "other", seed=7)
    return root


@pytest.fixture
def job(models, text_files, monkeypatch):
    """Return the result of a job of the base and one of these models, which read many pieces of text at once."""
    monkeypatch.setattr(words_of_ruler, "PIECES_PER_PASS", 64)

    def run(entry, target, *words, evaluation_share=0.25):
        pair = [f"model.path={models}/base", f"target.path={models}/{target}"]
        text = ["data=text", f"data.files=[{text_files}/*.txt]", f"data.evaluation_share={evaluation_share}"]
        return run_job(composed(*pair, *text, f"store={models}/store", *words, entry=entry))

    return run


CLOSED = ("stitch=least_squares", "data.fit_tokens=4096", "data.evaluation_tokens=2048", "ruler=null")
SOME = "layers=[[1,1],[3,2]]"


def similar(job, target, *words, **shares):
    return job("train", target, *CLOSED, "similarity=true", *words, **shares)


@pytest.mark.ci_slow
def test_similarity_is_what_the_ruler_shares(job, capsys):
    result = similar(job, "copy", SOME)
    assert ", above the local-mixing control (" in " ".join(capsys.readouterr().out.split())
    details = result.tables["details"]
    shared = job("analyze", "copy", "measure=ruler", SOME).details
    for name, name_in_ruler in IN_RULER.items():
        np.testing.assert_allclose(details[name], shared[name_in_ruler], atol=1e-6)
    mixing = shared[["source_local_mixing", "target_local_mixing"]].max(axis=1)
    assert details["local_mixing"].to_numpy() == pytest.approx(mixing.to_numpy(), abs=1e-6)
    assert not [name for name in result.table if name in IN_RULER], "the table has what a stitch costs"


@pytest.mark.ci_slow
def test_without_it_nothing_changes_and_both_directions_have_it(job):
    plain = job("train", "copy", *CLOSED, SOME)
    result = similar(job, "copy", SOME)
    assert plain.key != result.key
    pd.testing.assert_frame_equal(plain.table, result.table)
    assert not [name for name in plain.tables["details"] if name in IN_RULER]
    there, back = similar(job, "copy", SOME, "stitch.both=true").tables["details"].groupby("source", sort=False)
    there, back = there[1].reset_index(), back[1].reset_index()
    assert (there["residual_r2"] == back["residual_r2"]).all()
    assert (there["residual_r2_forward"] == back["residual_r2_backward"]).all()
    assert (there["residual_r2_forward"] != back["residual_r2_forward"]).all()


@pytest.mark.ci_slow
@pytest.mark.parametrize("site", ["resid_post", "resid_mid"])
def test_a_model_of_random_weights_is_cheap_to_stitch_and_not_similar(job, capsys, site):
    sites = [f"model.site={site}", f"target.site={site}"] if site != "resid_post" else []
    details = similar(job, "other", "layers=[[1,1]]", *sites).tables["details"]
    said = " ".join(capsys.readouterr().out.split())
    assert details["penalty"][0] < 0.5, "control: of random weights no state matters"
    assert details["residual_r2"][0] < 0.1
    assert ", not above the local-mixing control (" in said


@pytest.mark.ci_slow
def test_too_few_words_have_no_similarity(job, caplog):
    result = similar(job, "copy", "layers=[[1,1]]", evaluation_share=0.1)
    assert not [name for name in result.tables["details"] if name in IN_RULER]
    assert "does not say whether states are similar, as R² needs about" in caplog.text
    assert "give more text" in caplog.text
    assert "measure.words" not in caplog.text
