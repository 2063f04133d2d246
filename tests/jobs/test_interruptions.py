"""A job from Python that is stopped says what is kept, and which call continues it."""

import signal

import pytest

import thinkalike
from thinkalike.errors import StoreError
from thinkalike.instruments.layer_pairs.comparison import LayerPairComparison
from thinkalike.job.work import naming_resumed_states
from thinkalike.jobs import running
from thinkalike.processes import Interrupted
from thinkalike.store import read_state, write_state

STORED = r"thinkalike\.loss\(\.\.\., store='[^']+'\) with the same arguments "


@pytest.fixture(autouse=True)
def _in_the_foreground():
    """A shell lets what it starts in the background ignore SIGINT, and the tests may be such."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_by(monkeypatch, ending):
    def run_job(config, shown):
        ending()

    monkeypatch.setattr(running, "run_job", run_job)


def raising(error, kept=None):
    def ending():
        error.kept = kept
        raise error

    return ending


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("ending", "store", "said"),
    [
        (
            ctrl_c,
            None,
            r"^interrupted, and nothing of it is kept; next time, thinkalike.loss\(..., store='results'\) keeps",
        ),
        (ctrl_c, "kept", f"^interrupted; {STORED}resumes from the last state, if one was kept$"),
        (
            raising(Interrupted(signal.SIGINT, "at pool 4 of 12"), True),
            "kept",
            f"^interrupted at pool 4 of 12; {STORED}resumes from what is kept$",
        ),
        (
            raising(Interrupted(signal.SIGINT), False),
            "kept",
            f"^interrupted; {STORED}begins again, as no state was kept yet$",
        ),
    ],
)
def test_an_interruption_names_the_call_that_continues_the_job(ending, store, said, tmp_path, monkeypatch):
    interrupted_by(monkeypatch, ending)
    with pytest.raises(KeyboardInterrupt, match=said):
        thinkalike.loss("gelu-3l-mini", store=store and tmp_path / store)


def test_a_time_limit_ends_a_job_with_the_shells_status_and_the_same_line(tmp_path, monkeypatch, capsys):
    interrupted_by(monkeypatch, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        thinkalike.loss("gelu-3l-mini", store=tmp_path)
    assert ended.value.code == 143
    assert "thinkalike.loss(..., store=" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "as it was before"


@pytest.mark.ci_slow
def test_a_comparison_that_was_stopped_resumes_where_it_was(tmp_path, monkeypatch):
    few = {"texts": "stdlib", "batches": 4, "tokens_per_batch": 128, "measure": "mutual_knn"}
    whole = thinkalike.compare("gelu-3l-mini", "solu-3l-mini", **few)
    update = LayerPairComparison.update
    batches = []

    def stop_at_first(comparison, metric, batch):
        batches.append(batch.number)
        if len(batches) == 1:
            signal.raise_signal(signal.SIGINT)
        update(comparison, metric, batch)

    monkeypatch.setattr(LayerPairComparison, "update", stop_at_first)
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted at pool \d of \d; .* resumes from what is kept$"):
        thinkalike.compare("gelu-3l-mini", "solu-3l-mini", **few, store=tmp_path)
    again = thinkalike.compare("gelu-3l-mini", "solu-3l-mini", **few, store=tmp_path)
    assert batches == [0, 1, 2, 3], "each batch once: the pool of the signal is finished and kept"
    assert again.arrays["value"].tolist() == whole.arrays["value"].tolist()


def without_numbers(state):
    del state["metric"]["numbers"]


def with_text_for_numbers(state):
    state["metric"]["numbers"] = "1 2 3"


def before_the_first_pool(state):
    state["pools"] = -1000


@pytest.mark.ci_slow
@pytest.mark.parametrize("change", [without_numbers, with_text_for_numbers, before_the_first_pool])
def test_a_state_that_somebody_changed_is_named_and_can_be_removed(change, tmp_path, monkeypatch):
    few = {"texts": "stdlib", "batches": 4, "tokens_per_batch": 128, "measure": "mutual_knn", "store": tmp_path}
    update = LayerPairComparison.update

    def stop_at_first(comparison, metric, batch):
        update(comparison, metric, batch)
        if batch.number == 0:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as stopping:
        stopping.setattr(LayerPairComparison, "update", stop_at_first)
        with pytest.raises(KeyboardInterrupt):
            thinkalike.compare("gelu-3l-mini", "solu-3l-mini", **few)
    (path,) = tmp_path.rglob("metrics-*.pt")
    state = read_state(path)
    change(state)
    changed = write_state(path.parent, "metrics", state)
    with pytest.raises(StoreError, match=rf"resumed from {changed}, and failed \(.*remove it to begin anew"):
        thinkalike.compare("gelu-3l-mini", "solu-3l-mini", **few)
    changed.unlink()
    assert thinkalike.compare("gelu-3l-mini", "solu-3l-mini", **few).scalars["batches"] == 4


def test_an_error_of_a_job_that_began_anew_passes():
    with pytest.raises(KeyError), naming_resumed_states([]):
        raise KeyError("numbers")
