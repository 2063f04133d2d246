"""The outcome of a diff: its tables, its headline numbers and its verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.evaluation.columns import document_counts, interval_columns
from thinkalike.evaluation.document_means import mean_over_documents
from thinkalike.instruments.diff.null_runs import RANDOM_SIGNS
from thinkalike.instruments.diff.observations import Observations
from thinkalike.instruments.diff.tables import (
    BOUNDS,
    row_of_unchanged_module,
    table_of_classes,
    table_of_contexts,
    table_of_layers,
    table_of_modules,
    table_of_nulls,
    table_of_outputs,
    table_of_tokens,
    table_of_words,
)
from thinkalike.job import Outcome
from thinkalike.measures.changes import Verdict, equivalence, rank_p
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import parts_of

EXIT_STATUS: Mapping[Verdict, int] = {"equivalent": 0, "not equivalent": 1, "undecided": 3}

FROM_BEST_TO_WORST: tuple[Verdict, ...] = ("equivalent", "undecided", "not equivalent")

BLANK = (
    "amount",
    "spread",
    "size",
    "norm_of_change",
    "head",
    "heads",
    "lead_random",
    "distance",
    "distance_low",
    "distance_high",
)
"""Columns that may have empty cells: some operations have no amount, some outputs no head, and
some changes no random change to compare with. Nothing is relative to a norm of 0."""

UNBOUNDED = (-math.inf, math.inf)

COLUMN_OF_MARGIN = {"loss": "loss_change", "class": "kl", "word": "change"}
"""The column whose interval is compared with a margin, where it has a different name."""


def outcome_of_diff(observed: Observations) -> Outcome:
    """Return the outcome of a diff: its tables, without those that are empty, and numbers."""
    modules = table_of_modules(observed)
    classes = table_of_classes(observed)
    words = table_of_words(observed)
    tables = {
        "layers": table_of_layers(observed),
        "nulls": table_of_nulls(observed),
        "tokens": table_of_tokens(observed),
        "classes": classes,
        "words": words,
        "contexts": table_of_contexts(observed),
        "directions": pd.DataFrame(observed.directions),
        "outputs": table_of_outputs(observed),
        **observed.taught_tables,
        **observed.difference_tables,
    }
    return Outcome(
        modules,
        _scalars_of_diff(observed, classes, words),
        tables={name: table for name, table in tables.items() if len(table)},
        blank=[*modules.columns, *BLANK],  # the columns that may have empty cells
    )


def outcome_of_equal_models(base: FrozenModel, margin: Mapping[str, float | None]) -> Outcome:
    """Return the outcome of a diff of two equal models: all numbers are 0, and no text is read.

    "modules" and "settings" are the numbers of those that differ, and "tokens" is how many were
    read. The exit statuses of equivalence tests are 0 as well, which means "equivalent".

    Args:
        base: One of the models, which says what modules there are.
        margin: The margin of equivalence of each number; None: it is not tested.
    """
    rows = [row_of_unchanged_module(part) for part in parts_of(base)]
    names = ["modules", "settings", "tokens"]
    for name in ("kl", "flips", "loss_change"):
        names += [name, f"{name}_low", f"{name}_high"]
    margins = [name for name, value in margin.items() if value is not None]
    names += [f"exit_status_{name}" for name in margins]
    if margins:
        names.append("exit_status")
    return Outcome(pd.DataFrame(rows), dict.fromkeys(names, 0.0))


def _scalars_of_diff(
    observed: Observations, classes: pd.DataFrame, words: pd.DataFrame
) -> dict[str, float]:
    """Return the headline numbers of a diff.

    Args:
        observed: The observations of the two models.
        classes: The table of kinds of tokens, whose intervals are compared with a margin.
        words: The table of words, whose intervals are compared with a margin.
    """
    documents = observed.documents()
    kl = observed.kl().double()
    scalars = {
        **document_counts(torch.bincount(documents)),
        "tokens": float(len(kl)),
        "modules": float(len(observed.parts)),
        "settings": float(len(observed.difference_tables.get("settings", ()))),
        "nulls": float(len(observed.null.kl)),
    }
    scalars |= _without_unbounded_ends(observed.unread_token_numbers)
    scalars |= observed.taught_numbers
    for name, values in _change_at_each_token(observed).items():
        bounds = BOUNDS.get(name, UNBOUNDED)
        mean = mean_over_documents(values, documents, bounds=bounds)
        scalars |= _without_unbounded_ends(interval_columns(name, mean))

    tokens_of_part = observed.rows.tokens[: observed.n_first_rows, :-1].numel()
    kl_of_part = kl[:tokens_of_part].mean()
    if observed.parts or observed.outputs:
        scalars["kl_of_compared_tokens"] = float(kl_of_part)
        scalars["compared_tokens"] = float(tokens_of_part)
    for kind in observed.null.kinds:
        name = "signs" if kind == RANDOM_SIGNS else "null"
        runs = observed.null.kl_of_kind(kind).double().mean(1)
        scalars |= _numbers_of_comparison_with_null(name, kl_of_part, runs)
    if len(words):
        scalars["contrast_base"] = words["before"].mean()
        scalars["contrast_change"] = words["change"].mean()
    if observed.has_continued_training_control:
        scalars["p_of_farthest_module"] = observed.move_beyond_control.p_value
    return scalars | _exit_statuses(observed.margin, scalars, {"class": classes, "word": words})


def _change_at_each_token(observed: Observations) -> dict[str, Float[Tensor, " n"]]:
    """Return what the change of the model does at each token, by the name of a headline number.

    KL and losses are in nats. `kl` is KL(base ‖ changed) after the token, and `reverse_kl` is
    KL(changed ‖ base). `flips` is 1 where the most likely next token differs, and else 0.
    """
    tokens = [change.tokens for change in observed.changes]
    loss_base = torch.cat([batch.loss_base for batch in tokens]).double()
    loss_changed = torch.cat([batch.loss_changed for batch in tokens]).double()
    return {
        "kl": torch.cat([batch.kl for batch in tokens]).double(),
        "flips": torch.cat([batch.flip for batch in tokens]).double(),
        "loss_change": loss_changed - loss_base,
        "reverse_kl": torch.cat([batch.reverse for batch in tokens]).double(),
        "loss_base": loss_base,
        "loss_changed": loss_changed,
    }


def _without_unbounded_ends(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers without the ends of intervals that are not finite.

    Few documents give unbounded intervals. Any other number that is not finite is kept, so that
    the check of the result finds it and raises an error.
    """
    remaining = {}
    for name, value in numbers.items():
        is_end_of_interval = name.endswith(("_low", "_high"))
        if math.isfinite(value) or not is_end_of_interval:
            remaining[name] = value
    return remaining


def _numbers_of_comparison_with_null(
    name: str, value: Float[Tensor, ""], runs: Float[Tensor, " r"]
) -> dict[str, float]:
    """Return headline numbers that compare the KL of the change with the runs of a null.

    A run is a model with a random change, or a copy of the base that was trained further. The
    numbers are the KL of the lowest and the highest run, and two one-sided p-values: for a value
    above the runs, and for a value below them.

    Args:
        name: How the names of these numbers begin.
        value: The mean KL of the change.
        runs: The mean KL of each run.
    """
    return {
        f"{name}_low": float(runs.min()),
        f"{name}_high": float(runs.max()),
        f"{name}_p": float(rank_p(value, runs)),
        f"{name}_p_less": float(rank_p(-value, -runs)),
    }


def _exit_statuses(
    margins: Mapping[str, float | None],
    numbers: Mapping[str, float],
    tables: Mapping[str, pd.DataFrame],
) -> dict[str, float]:
    """Return the exit status of each equivalence test, and that of all tests together.

    A test asks whether a number is within its margin of equivalence. Its status stands for
    "equivalent", "not equivalent" or "undecided". The margins of classes of tokens and of words
    must hold in every row of their table. A margin of KL or flips must also hold after tokens
    whose embedding changed and which the text lacks; these were inserted into the text.

    Args:
        margins: The margin of each number; None: it is not tested.
        numbers: The headline numbers, with the ends of their intervals.
        tables: The tables whose rows are tested, by the name of the margin. An empty table leaves
            its test undecided.

    Returns:
        The statuses by name; {} if no margin is given.
    """
    verdicts: dict[str, Verdict] = {}
    for name, margin in margins.items():
        if margin is None:
            continue
        column = COLUMN_OF_MARGIN.get(name, name)
        if name in tables:
            intervals = _intervals_of_rows(tables[name], column)
        else:
            intervals = [_ends_of_interval(numbers, column)]
        if f"unread_{name}" in numbers:
            intervals.append(_ends_of_interval(numbers, f"unread_{name}"))
        verdicts_of_intervals: list[Verdict] = [
            equivalence(low, high, margin) for low, high in intervals
        ]
        verdicts[name] = worst_verdict(verdicts_of_intervals or ["undecided"])
    if not verdicts:
        return {}
    statuses = {}
    for name, verdict in verdicts.items():
        statuses[f"exit_status_{name}"] = float(EXIT_STATUS[verdict])
    statuses["exit_status"] = float(EXIT_STATUS[worst_verdict(verdicts.values())])
    return statuses


def _ends_of_interval(numbers: Mapping[str, float], name: str) -> tuple[float, float]:
    """Return the ends of the interval of a headline number; (-∞, ∞) if it has none."""
    return numbers.get(f"{name}_low", -math.inf), numbers.get(f"{name}_high", math.inf)


def _intervals_of_rows(table: pd.DataFrame, column: str) -> list[tuple[float, float]]:
    """Return the ends of the interval of a column, for each row of a table, which may be empty."""
    if table.empty:
        return []
    return list(zip(table[f"{column}_low"], table[f"{column}_high"], strict=True))


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several tests together.

    It is "not equivalent" if one of them is, else "undecided" if one is, else "equivalent".
    """
    return max(verdicts, key=FROM_BEST_TO_WORST.index)
