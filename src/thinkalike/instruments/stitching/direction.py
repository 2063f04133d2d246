"""One direction of a stitching job, from the statistics of states to the table of details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pandas as pd
from pytorch_lightning.loggers import Logger
from torch import Tensor

from thinkalike.data.rows import PairedRows
from thinkalike.instruments.stitching.closed_forms import ClosedForms, gather_statistics
from thinkalike.instruments.stitching.fitting import FittedStitches, fit_stitches
from thinkalike.instruments.stitching.reporting import (
    DocumentTotals,
    losses_of_copies,
    report_sums,
)
from thinkalike.instruments.stitching.setting import StitchSetting
from thinkalike.instruments.stitching.table import bit_width_columns, table_of_penalties
from thinkalike.job import Work
from thinkalike.measures.halved_moments import HalvedMoments
from thinkalike.models.variants import randomised
from thinkalike.training.run import TrainingRun

Value = TypeVar("Value")


@dataclass
class Direction:
    """One direction of a job.

    Attributes:
        closed_forms: The closed forms of its layer pairs.
        details: One row for each layer pair.
        weights: The stitches that the result keeps.
        arrays: The arrays that the result keeps.
        sums: The sums by document, which are among the arrays.
    """

    closed_forms: ClosedForms
    details: pd.DataFrame
    weights: dict[str, Tensor]
    arrays: dict[str, np.ndarray]
    sums: DocumentTotals


def with_prefixes(entries: Mapping[str, Mapping[str, Value]], mark: str) -> dict[str, Value]:
    """Join several dictionaries into one, with a prefix before each name.

    With the mark "_", the entry "tokens" of the dictionary "back" becomes "back_tokens".

    Args:
        entries: The dictionaries, by the prefix of their names; "" leaves names as they are.
        mark: The text between the prefix and the name.
    """
    joined = {}
    for prefix, entries_with_prefix in entries.items():
        for name, value in entries_with_prefix.items():
            joined_name = f"{prefix}{mark}{name}" if prefix else name
            joined[joined_name] = value
    return joined


def stitches_of_direction(
    setting: StitchSetting, run: TrainingRun, loggers: Sequence[Logger], work: Work
) -> Direction:
    """Fit the stitches of one direction with every seed, and evaluate them on held-out text.

    The steps are: the statistics of states, controls that need an untrained source, the training
    (or closed forms), the losses of stitched models, and the losses of rounded copies of the
    target, which give the losses a scale.

    Args:
        setting: The models, their layer pairs and the text.
        run: Where and how stitches are trained.
        loggers: What gets the learning curves of the first seed.
        work: The context of the running job.
    """
    with work.phase("statistics"):
        statistics = gather_statistics(setting)
    with work.phase("controls"):
        untrained = None
        if setting.config.controls:
            random_source = randomised(setting.source, setting.seed)
            untrained = ClosedForms(replace(setting, source=random_source))
            del random_source
    closed_forms = ClosedForms(setting, statistics.moments)
    with work.phase("fit"):
        first = fit_stitches(closed_forms, run, loggers, untrained)
        further_seeds = _further_seeds(setting, statistics.moments, run)
    with work.phase("report"):
        maps_of_seeds = {name: fits.maps for name, fits in further_seeds.items()}
        sums = report_sums(closed_forms, first, untrained, maps_of_seeds, statistics.means)
        report = setting.corpus.report
        if isinstance(report, PairedRows):
            sums["target_bytes"] = report.target_bytes
            sums["source_bytes"] = report.source_bytes
            sums["documents"] = report.document_hashes

    untrained = None  # the random source makes room for rounded copies
    with work.phase("ruler"):
        sums |= losses_of_copies(setting, sums)
    details = table_of_penalties(setting, sums).assign(**bit_width_columns(sums))

    weights_of_seeds = {name: fits.weights for name, fits in further_seeds.items()}
    weights = with_prefixes({"": first.weights, **weights_of_seeds}, ".")
    arrays = dict(first.arrays)
    for name, totals in sums.items():
        arrays[name] = totals.numpy()
    return Direction(closed_forms, details, weights, arrays, sums)


def _further_seeds(
    setting: StitchSetting, moments: HalvedMoments | None, run: TrainingRun
) -> dict[str, FittedStitches]:
    """Train the stitches with all seeds but the first, and return them by name ("seed_1", ...).

    Only the map φ of each layer pair is trained, at one learning rate. The controls of the first
    seed are not: neither the floor (the target stitched into itself), nor stitches from an
    untrained source. The dictionary is empty for closed forms, which are not trained.

    Args:
        setting: The models, their layer pairs and the text.
        moments: The moments of both models' states; None: they are gathered if they are needed.
        run: Where and how stitches are trained.
    """
    if not setting.config.trained:
        return {}
    config = replace(setting.config, floor=False, lr_multiples=[])
    fits = {}
    for number in range(1, setting.config.seeds):
        training_name = f"seed-{number}"
        if run.name:
            training_name = f"{run.name}-{training_name}"
        setting_of_seed = replace(setting, config=config, seed=setting.seed + number)
        closed_forms = ClosedForms(setting_of_seed, moments)
        fits[f"seed_{number}"] = fit_stitches(closed_forms, replace(run, name=training_name))
    return fits
