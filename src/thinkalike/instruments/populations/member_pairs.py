"""What every two members of a population do together: identity stitches at every cut, and CKA at every layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.data import EncodedPairs, PairBatch, Pairs, batches
from thinkalike.errors import ConfigError, DataError
from thinkalike.evaluation import IdentityStitches, identity_stitches
from thinkalike.interrupts import at_boundaries, stop
from thinkalike.job import Work
from thinkalike.measures.kernels.hsic import FEWEST
from thinkalike.models import FrozenModel
from thinkalike.progress import counted, doing
from thinkalike.states import StateBatches, pair_batches

KEPT_EVERY = 10  # batches of stitches
LEAST_BATCHES = 4  # of CKA where a pair is one row, so that there is an interval
STITCHES, CKA_STATE = "stitches", "cka"  # the states that a job goes on from


class PopulationCKA(NamedTuple):
    """CKA of every two models at each layer, and what it comes from."""

    value: Float[Tensor, "m m l"]
    hsics: Float[Tensor, "b m m l"]  # of each batch
    facts: dict[str, Any]  # how many pairs and rows


def stitched_members(
    models: Sequence[FrozenModel], encoded: EncodedPairs, pairs: Pairs, measure: Any, work: Work
) -> IdentityStitches:
    """Return losses and predicted classes of all stitches (source, target, cut, pair).

    What is done is kept every few batches, and an interrupted job goes on from there. Processes share the batches.

    Args:
        measure: `batch`, how many pairs run at once, and `at_once`, how many sources.
    """
    found, first = _begun(models, len(pairs), work)
    parts, new = list(batches(encoded, measure.batch)), list[tuple[Any, IdentityStitches]]()

    def add(number: int, batch: PairBatch) -> None:
        labels, mask = pairs.labels[batch.rows], batch.mask.long()
        part = identity_stitches(
            models, batch.tokens, labels, pairs.classes, mask=mask, types=batch.types, at_once=measure.at_once
        )
        new.append((batch.rows, part))

    def gather() -> None:
        for rows, part in itertools.chain.from_iterable(work.team.everyone(new)):
            for whole, own in zip(found, part, strict=True):
                whole[..., rows] = own
        new.clear()

    with at_boundaries(), doing("batch of stitches", len(parts), first) as activity:
        for each in work.team.rounds(lambda number, step: iter(parts[number::step]), first, add):
            activity.reach(each.done)
            if each.passes(KEPT_EVERY) or each.asked:
                gather()
                if not work.team.rank:
                    work.keep(STITCHES, {**found._asdict(), "batches": each.done})
            if each.asked:
                stop(f"at batch {each.done} of {len(parts)}")
        gather()
    work.team.end_of_share()
    return found


def _begun(models: Sequence[FrozenModel], pairs: int, work: Work) -> tuple[IdentityStitches, int]:
    """Return what an earlier run left, or nothing but zeros, and how many batches it did."""
    kept = work.resume(STITCHES)
    if kept is not None:
        return IdentityStitches(kept["losses"], kept["predicted"]), int(kept["batches"])
    shape = len(models), len(models), models[0].n_layers + 1, pairs
    return IdentityStitches(torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.int8)), 0


def likeness_of_members(
    models: Sequence[FrozenModel], encoded: EncodedPairs, measure: Any, work: Work
) -> PopulationCKA:
    """Return CKA of every two models at each layer, or what an earlier run left of it.

    Args:
        measure: `tokens`, `tokens_per_batch`, `cka_pairs`, `site`, `include_padding`, `padding` and `batch`, see
            `population.Config`.

    Raises:
        ConfigError: `padding` is shorter than a pair, or longer than a model can take.
        DataError: there are too few pairs, or states have no CKA.
    """
    kept = work.resume(CKA_STATE)
    if kept is None:
        kept = _compared(models, *_state_batches(models, encoded, measure), measure)._asdict()
        work.keep(CKA_STATE, kept)
    return PopulationCKA(**kept)


def _state_batches(
    models: Sequence[FrozenModel], encoded: EncodedPairs, measure: Any
) -> tuple[StateBatches, dict[str, Any]]:
    """Return the states that CKA compares, and how many pairs they are of, in batches of how many rows."""
    count = len(encoded) if measure.cka_pairs is None else measure.cka_pairs
    if count > len(encoded):
        raise DataError(f"there are {len(encoded)} pairs for measure.cka_pairs={count}; lower it, or give more pairs")
    longest, most = encoded.longest, min(model.context for model in models)
    if measure.padding is not None and not longest <= measure.padding <= most:
        raise ConfigError(
            f"measure.padding={measure.padding} must be from {longest}, the longest pair, to {most}, the most tokens "
            "that every member takes"
        )
    rows, first_only = measure.tokens_per_batch, measure.tokens == "cls"
    if first_only:
        rows = min(rows, count // LEAST_BATCHES)
        if count < LEAST_BATCHES * FEWEST:
            raise DataError(
                f"measure.tokens=cls compares a row of each of {count} pairs; give at least {LEAST_BATCHES * FEWEST}"
            )
    options = {key: getattr(measure, key) for key in ("site", "include_padding")}
    states = pair_batches(
        models, encoded, tokens_per_batch=rows, first_only=first_only, padded_to=measure.padding or 0, pairs=count,
        pairs_at_once=measure.batch, **options,
    )  # fmt: skip
    return states, {"tokens": measure.tokens, "pairs": count, "rows_per_batch": rows}


def _compared(
    models: Sequence[FrozenModel], states: StateBatches, facts: dict[str, Any], measure: Any
) -> PopulationCKA:
    from thinkalike.measures import CKA  # torchmetrics takes seconds to import

    m = len(models)
    metrics = [CKA(m, m, sync_on_compute=False) for _ in range(models[0].n_layers)]
    for batch in counted(states.starting(0, 1), "batch of CKA"):
        for number, (metric, layer) in enumerate(zip(metrics, zip(*batch.states, strict=True), strict=True)):
            try:
                metric.update(layer, layer)
            except ValueError as error:  # what it calls layers are models
                raise DataError(f"block {number} of {', '.join(model.name for model in models)}: {error}") from error
    if not metrics[0].update_called:
        raise DataError(
            f"too few pairs for measure.tokens_per_batch={measure.tokens_per_batch}; lower it, or let CKA read more"
        )
    results = [metric.compute() for metric in metrics]
    hsics = torch.stack([each.hsics[:, :m, :m] for each in results], -1)
    return PopulationCKA(torch.stack([each.value for each in results], -1), hsics, facts | {"batches": len(hsics)})
