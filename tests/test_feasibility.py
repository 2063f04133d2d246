"""What no machine can do is refused before it begins, by an estimate of the least that it needs."""

from __future__ import annotations

import pytest
import torch

from thinkalike.errors import ResourceError
from thinkalike.job import check_feasible
from thinkalike.job.feasibility import memory_of

CPU = torch.device("cpu")


def test_what_fits_passes_and_what_does_not_is_one_line():
    there = memory_of(CPU)
    assert 2**28 < there < 2**50
    check_feasible("size=1", CPU, memory=there / 2, operations=1e20)
    with pytest.raises(ResourceError, match=r"^size=9 needs at least [\d,]+ GiB of [\d,]+ GiB; lower it$"):
        check_feasible("size=9", CPU, memory=2 * there)
    with pytest.raises(ResourceError, match=r"^steps=9 would take at least 3 years on the fastest GPU .*; lower it$"):
        check_feasible("steps=9", CPU, operations=1e23)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py", "stitch.tokens_per_step=100000000"], "stitch.tokens_per_step=100000000 for 4 stitches needs"),
        (["train.py", "stitch.steps=10000000", "stitch.tokens_per_step=30000000"], "stitch.steps=10000000 of stitch"),
        (["analyze.py", "measure=cka", "measure.tokens_per_batch=1000000"], "measure.tokens_per_batch=1000000 needs"),
        (["analyze.py", "measure=mknn", "measure.batches=1000000000", "measure.tokens_per_batch=50000"], "years"),
        (["train.py", "task=pretrain", "model=gelu-3l-mini", "pretrain.tokens=1000000000000000"], "pretrain.tokens="),
        (["train.py", "task=nli", "model=bert-mini", "nli.epochs=1000000000"], "nli.epochs=1000000000"),
    ],
)
def test_jobs_say_what_they_would_need(words, said, door, minis, text_files, tmp_path, monkeypatch):
    monkeypatch.setattr("thinkalike.job.feasibility.memory_of", lambda device: 40 * 2**30)
    monkeypatch.setattr("thinkalike.job.feasibility.FASTEST", 1e9)  # the models are tiny
    script, *rest = words
    if not any(word.startswith("task=") for word in rest):
        rest += [f"model.path={minis}/a", f"target.path={minis}/b", "model.context=32"]
        rest += ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=4096", "data.report_share=0.4"]
    assert said in door(script, *rest, f"store={tmp_path}/store").error
    assert not (tmp_path / "store").exists()
