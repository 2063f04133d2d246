"""The court runs on GPUs that are not there, with a source and a target on different ones."""

import pytest

from test_fake_device import GPU, IN_LOOPS, OTHER, made, rows, waits
from thinkalike.contrib.court.evidence import Bench, Evidence
from thinkalike.contrib.court.source import Setting, Source


def judged(_, __):
    """A source of a court whose states are on another GPU than the target's."""
    target, other = made(2, GPU), made(1, OTHER)
    texts = [rows(seed).tokens for seed in range(3)]
    setting = Setting(target, 1, texts[0], texts[1], rows(1).documents, texts[2], 0, lambda *_: None)
    source = Source("other", "real", lambda tokens: other.residuals(tokens, [1])[0], target)
    evidence = Evidence(source, Bench(setting))
    evidence.columns  # noqa: B018
    evidence.course  # noqa: B018


@pytest.mark.ci_slow
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_court_mixes_no_devices_and_waits_in_no_loop():
    few, more = waits(judged, 1, 1), waits(judged, 2, 2)
    assert {place for place, count in more.items() if count > few[place]} <= IN_LOOPS | {"test"}
