"""The court's evidence runs on a GPU that is not there."""

import pytest

from thinkalike.contrib.court.evidence import Evidence
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import Source
from thinkalike.contrib.court.target_results import TargetResults
from two_gpus import GPU, OTHER, made, rows, waits


@pytest.mark.ci_slow
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_evidence_mixes_no_devices():
    assert waits(judged), "control: it ran on the device"


def judged():
    """Judge a source of which the states are on another GPU than the target's."""
    target = made(2, GPU)
    other = made(1, OTHER)
    texts = [rows(seed).tokens for seed in range(3)]
    materials = Materials(target, 1, texts[0], texts[1], rows(1).documents, texts[2], 0, lambda *_: None)
    source = Source("other", "real", lambda tokens: other.residuals(tokens, [1])[0], target)
    evidence = Evidence(source, TargetResults(materials))
    assert evidence.columns
    assert len(evidence.stitched_run)
