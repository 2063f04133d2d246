"""Jobs that do not fit into memory are refused: before they begin, or at their first batch."""

import pytest
import torch

from thinkalike import memory as places
from thinkalike.errors import ResourceError
from thinkalike.memory import FirstBatch


def test_only_the_first_batch_is_watched(monkeypatch):
    monkeypatch.setattr(places, "in_use", lambda device: 0)
    monkeypatch.setattr(places, "at_hand", lambda device: 10_000)
    watched = FirstBatch("lower it")
    with watched:
        held = [torch.zeros(1000)]
    with pytest.raises(ResourceError, match=r"lower it$"), watched:
        torch.zeros(1200)
    held.clear()
    with watched:
        assert torch.zeros(1200).sum() == 0, "what was freed does not count"
    watched.is_over = True
    with watched:
        assert len(torch.zeros(10_000)) == 10_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py", "stitch.tokens_per_step=100000000"], "stitch.tokens_per_step=100000000 needs at least 1.2 GB"),
        (["train.py", "stitch.kind=least_squares", "trainer.memory=1MB"], "closed forms of 4 layer pairs need"),
        (["train.py", "trainer.memory=1MB"], "4 stitches need at least 0 MB of memory beside 500 MB in use"),
        (["analyze.py", "measure=cka", "measure.tokens_per_batch=4096"], "lower measure.tokens_per_batch"),
    ],
)
def test_a_job_that_does_not_fit_is_refused_by_the_setting(words, said, cli, minis, text_files, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "in_use", lambda device: 500_000_000)
    monkeypatch.setattr(places, "at_hand", lambda device: 30_000_000 if "measure=cka" in words else 1_000_000_000)
    script, *rest = words
    rest += [f"model.path={minis}/a", f"target.path={minis}/b", "model.context=32"]
    rest += ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=4096", "data.report_share=0.4"]
    assert said in cli(script, *rest, f"store={tmp_path}/store").error
