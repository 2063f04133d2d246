"""Instruments: one file each, with its settings, its run, its table, its figure and what it prints.

`thinkalike.registry` lists them. A module here holds the settings of a measure, such as `CKAConfig`, and one
subclass of `Instrument`. Lists of results import it, so that of stitches imports Lightning inside its functions.
"""

from __future__ import annotations

from typing import Any

from thinkalike import figures
from thinkalike.catalogue import instrument
from thinkalike.errors import ResultError
from thinkalike.global_state import isolated
from thinkalike.job.listed_jobs import asked_for
from thinkalike.job.lookup import instrument_of
from thinkalike.job.performing import passes, run_job, run_jobs
from thinkalike.job.unread_settings import check_read
from thinkalike.store import Result


@isolated()
def plot(what: Any, name: str | None = None, ax: Any = None) -> tuple[Any, Any]:
    """Draw a figure of a `Result` once more, or the matrix of all layer pairs that a metric computed.

    Args:
        name: of a figure of the result, as its files are called, such as "penalty"; by default the first.
        ax: where to draw; by default into a new figure.

    Returns:
        The figure and its axes, a list where there are several.

    Raises:
        ResultError: the kind draws no figures, or none of that name; or it is no result.

    >>> metric = CKA(1, 1)
    >>> metric.update([torch.randn(9, 4)], [torch.randn(9, 4)])
    >>> figure, axes = plot(metric.compute())
    >>> axes.get_xlabel()
    'target, layer'
    """
    if not isinstance(what, Result):
        from torch import Tensor  # which the help of a command need not load

        if not isinstance(getattr(what, "value", None), Tensor) or not hasattr(what, "label"):
            raise ResultError(f"plot takes a Result, as open_result gives, or what a metric computed, and not {what!r}")
        return figures.layer_pairs(what.value.cpu().numpy(), what.label, ax=ax)  # type: ignore[no-any-return]
    if what.instrument is None:
        raise ResultError(f"{what.kind} is drawn from several results; its figures are in {what.folder / 'figures'}")
    return what.instrument.plot(what, name, ax)  # type: ignore[no-any-return]


__all__ = ["asked_for", "check_read", "instrument", "instrument_of", "passes", "plot", "run_job", "run_jobs"]
