"""Instruments: a file or a folder each, with settings, run, table, figure and screen.

`thinkalike.registry` lists them. A module here holds the settings of a measure, such as
`CKAConfig`, and one subclass of `Instrument`. Lists of results import it, so that of stitches
imports Lightning inside its functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from thinkalike import figures
from thinkalike.catalogue import instrument
from thinkalike.errors import ResultError
from thinkalike.global_state import isolated
from thinkalike.job.listed_jobs import asked_for
from thinkalike.job.lookup import instrument_of
from thinkalike.job.performing import jobs_by_pass, run_job, run_jobs
from thinkalike.job.unread_settings import refuse_unread_settings
from thinkalike.store import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from thinkalike.measures.layer_pair_estimate import LayerPairEstimate


@isolated()
def plot(
    what: Result | LayerPairEstimate, name: str | None = None, ax: Axes | None = None
) -> tuple[Figure, Axes | list[Axes]]:
    """Draw a figure of a `Result`, or the matrix of all layer pairs that a metric computed.

    Args:
        what: The result, or the estimate that the metric computed.
        name: The name of a figure of the result without its file extension, such as "penalty";
            by default the first figure.
        ax: The axes to draw into; by default those of a new figure.

    Returns:
        The figure and its axes, a list where there are several.

    Raises:
        ResultError: The result has no figures, or none of that name, or is drawn from several
            results; or `what` is neither a result nor an estimate.

    >>> metric = CKA(1, 1)
    >>> metric.update([torch.randn(9, 4)], [torch.randn(9, 4)])
    >>> figure, axes = plot(metric.compute())
    >>> axes.get_xlabel()
    'layer of target'
    """
    if not isinstance(what, Result):
        drawn = _plot_estimate(what, ax)
    elif what.instrument is None:
        folder = what.folder / "figures"
        raise ResultError(
            f"{what.kind} is drawn from several results; its figures are in {folder}"
        )
    else:
        drawn = what.instrument.plot(what, name, ax)
    return cast("tuple[Figure, Axes | list[Axes]]", drawn)


def _plot_estimate(estimate: LayerPairEstimate, ax: Axes | None) -> object:
    """Draw the matrix of all layer pairs that a metric computed, and return figure and axes.

    Raises:
        ResultError: `estimate` has no tensor `value`, or no `label`.
    """
    from torch import Tensor  # imported here so that `--help` does not load torch

    # A user may have passed any object, whatever the annotation says.
    is_estimate = isinstance(getattr(estimate, "value", None), Tensor)
    if not is_estimate or not hasattr(estimate, "label"):
        raise ResultError(
            "plot takes a Result, as open_result gives, or what a metric computed, and not "
            f"{estimate!r}"
        )
    return figures.layer_pairs(estimate.value.cpu().numpy(), estimate.label, ax=ax)


__all__ = [
    "asked_for",
    "instrument",
    "instrument_of",
    "jobs_by_pass",
    "plot",
    "refuse_unread_settings",
    "run_job",
    "run_jobs",
]
