"""The court's likeness runs on a GPU that is not there, and waits in loops only where that is listed."""

import pytest

from test_fake_device import GPU, IN_LOOPS, OTHER, made, rows, waits
from thinkalike.contrib.court.likeness import likeness_of

WAITS = """
    likeness.fit likeness.judge likeness.output_roots likeness.whitening likeness._fitted
    tokens_alone.__init__ tokens_alone.add tokens_alone.source_states tokens_alone.beside tokens_alone.r2
    tokens_alone._states tokens_alone.later_shares
"""  # for the same reasons as those of the core


@pytest.mark.ci_slow
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_likeness_mixes_no_devices_and_waits_in_no_loop():
    few, more = waits(likened, 1, 1), waits(likened, 2, 2)
    assert {place for place, count in more.items() if count > few[place]} <= IN_LOOPS | {"test", *WAITS.split()}


def likened(_, pairs):
    likeness_of(made(1, OTHER), made(2, GPU), [(0, 0), (1, 2), (2, 1)][:pairs], rows(0), rows(1))
