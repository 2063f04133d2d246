"""What no machine can do is refused before it begins, by an estimate of the least that it needs."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import tiny
from thinkalike import memory as places
from thinkalike.errors import ResourceError
from thinkalike.instruments import instrument as instrument_of
from thinkalike.instruments.cka import CKAConfig, LayerCKA
from thinkalike.instruments.layer_pairs.declared import CONFIGS
from thinkalike.instruments.layer_pairs.memory import _bytes_of_comparing
from thinkalike.job import check_memory
from thinkalike.memory import Budget, LiveBytes

CPU = torch.device("cpu")


def test_what_fits_passes_and_what_does_not_is_one_line():
    check_memory("size=1 needs", 7e9, Budget(8e9, 1e9))
    with pytest.raises(ResourceError) as caught:
        check_memory("size=9 needs", 7.1e9, Budget(8e9, 1e9), "halve it")
    assert str(caught.value) == (
        "size=9 needs at least 7.1 GB of memory beside 1.0 GB in use, and this device has 8.0 GB; halve it, "
        "or choose a device with more memory"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py", "stitch.tokens_per_step=100000000"], "stitch.tokens_per_step=100000000 needs at least 1.2 GB"),
        (
            ["train.py", "stitch.kind=least_squares", "trainer.memory=1MB"],
            "closed forms of 4 layer pairs need at least",
        ),
        (["train.py", "trainer.memory=1MB"], "8 stitches need at least 0 MB of memory beside 500 MB in use, and trai"),
        (["analyze.py", "measure=cka", "measure.tokens_per_batch=1000000"], "measure.tokens_per_batch=1000000 needs"),
    ],
)
def test_jobs_say_what_they_would_need(words, said, door, minis, text_files, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "in_use", lambda device: 500_000_000)
    monkeypatch.setattr(places, "at_hand", lambda device: 1_000_000_000)
    script, *rest = words
    if not any(word.startswith("task=") for word in rest):
        rest += [f"model.path={minis}/a", f"target.path={minis}/b", "model.context=32"]
        rest += ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=4096", "data.report_share=0.4"]
    assert said in door(script, *rest, f"store={tmp_path}/store").error
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "instrument",
    [LayerCKA(), instrument_of("thinkalike.instruments.layer_pairs.declared:mutual_knn")],
    ids=lambda each: each.kind,
)
@pytest.mark.parametrize("neighbours", [10, 300])
def test_what_comparing_the_tokens_of_a_batch_takes_is_foreseen(instrument, neighbours):
    schema = {"cka": CKAConfig, "mutual_knn": partial(CONFIGS["mutual_knn"], neighbours=neighbours)}[instrument.kind]
    source, target = tiny.frozen(1), tiny.frozen(2)
    foreseen = _bytes_of_comparing(instrument.metric, schema(tokens_per_batch=1500), source, target)
    layers = list(torch.randn(8, 1500, 8))
    with LiveBytes(CPU) as live:
        instrument.metric(schema(tokens_per_batch=1500), 4, 4, False).update(layers[:4], layers[4:], None, 0)
    assert 0.9 < foreseen / live.peak < 2
    assert _bytes_of_comparing(instrument.metric, schema(tokens_per_batch=310), source, target) < foreseen
