"""measure=cka: similarity of every layer pair of two models, batch by batch, with intervals."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.activations import counted, pieces, sites, token_states, word_states
from thinkalike.config import AnalyzeConfig, CKAConfig
from thinkalike.data import held_out_texts, text_fingerprint
from thinkalike.errors import DataError, StoreError
from thinkalike.jobs.steps import finished, prepare, provenance, read_corpus, settings_of
from thinkalike.measures import CKA, CKAResult, Estimate
from thinkalike.models import FrozenModel, checkpoint_fingerprint, load_model, same_vocabulary
from thinkalike.store import Job, key_of

log = logging.getLogger(__name__)

LEVERAGE = 0.2  # share of one row in a layer's variance that is warned of
KEPT_EVERY = 50  # batches
LOOK_EVERY = 10  # batches, how often stop_at_width looks at the intervals


Batch = tuple[list[Tensor], list[Tensor], Tensor | None]  # states of source and target, and which rows count


class _Batches(NamedTuple):
    """What a job compares: from the batch of a number on, how many there are, and facts of the data."""

    starting: Callable[[int], Iterator[Batch]]
    total: int
    facts: dict[str, Any]


def cka(config: AnalyzeConfig) -> Path:
    """CKA of all layers of `model` with all layers of `model@target`, and within each; leaves table and heatmap."""
    measure = config.measure
    assert isinstance(measure, CKAConfig)
    settings = settings_of(config, "model", "target", "data", "measure")
    digests = {
        "data": text_fingerprint(config.data),
        "model": checkpoint_fingerprint(config.model),
        "target": checkpoint_fingerprint(config.target),
    }
    job = Job(config.store, "cka", key_of(settings, digests), settings)
    if finished(job, config.force):
        return job.folder
    with job.running() as partial:
        prepare(config.seed, config.threads)
        source = load_model(config.model)
        target = source if config.target == config.model else load_model(config.target)
        batches = _batches(config, measure, source, target)
        result = _measure(measure, source, target, batches, partial)
        table = cells(result, source, target, measure.embed)
        _warn_of_leverage(result, source, target, measure.embed)
        figures.cka(table, job.out() / "figures")
        scalars = _scalars(result)
        _show(source, target, result, scalars)
        return job.finish(scalars, table, provenance(config, batches.facts, source, target), _arrays(result))


def _batches(config: AnalyzeConfig, measure: CKAConfig, source: FrozenModel, target: FrozenModel) -> _Batches:
    level = measure.level
    if level == "auto":
        level = "token" if source.tokenizer.get_vocab() == target.tokenizer.get_vocab() else "word"
        if level == "word":
            log.info("%s and %s have different tokenizers: compared word by word", source.name, target.name)
    return (_by_token if level == "token" else _by_word)(config, measure, source, target)


def _by_token(config: AnalyzeConfig, measure: CKAConfig, source: FrozenModel, target: FrozenModel) -> _Batches:
    same_vocabulary(source, target)  # the same rows must be the same text
    context = min(source.context, target.context)
    data = replace(config.data, report_tokens=measure.batches * measure.tokens_per_batch)
    corpus = read_corpus(data, source.tokenizer, context, bos=source.bos_each_row, fit_tokens=1)
    rows = corpus.report.tokens.split(max(measure.tokens_per_batch // corpus.report.tokens.shape[1], 1))
    special = source.tokenizer.all_special_ids if measure.skip_special_tokens else []

    def starting(first: int) -> Iterator[Batch]:
        for part in rows[first:]:
            mine, theirs = token_states([source, target], part, measure.embed)
            yield mine, theirs, counted(part, measure.skip_first_tokens, special)

    return _Batches(starting, len(rows), corpus.facts())


def _by_word(config: AnalyzeConfig, measure: CKAConfig, source: FrozenModel, target: FrozenModel) -> _Batches:
    if measure.flatten != "token" or measure.skip_first_tokens or measure.skip_special_tokens:
        raise DataError(
            "words are compared one by one: flatten, skip_first_tokens and skip_special_tokens are for tokens"
        )
    models = list(dict.fromkeys((source, target)))

    def starting(first: int) -> Iterator[Batch]:
        texts = pieces(held_out_texts(config.data), models, measure.tokens_per_batch)
        for batch in itertools.islice(texts, first, measure.batches):
            found = {id(model): word_states(model, batch, measure.embed) for model in models}
            yield found[id(source)], found[id(target)], None

    return _Batches(starting, measure.batches, {"level": "word"})


def _measure(
    measure: CKAConfig, source: FrozenModel, target: FrozenModel, batches: _Batches, partial: Path
) -> CKAResult:
    """All batches, or as many as make every interval narrow enough; goes on from the state that an earlier run left."""
    options = {key: getattr(measure, key) for key in ("estimator", "aggregate", "kernel", "flatten", "null")}
    metric = CKA(len(sites(source, measure.embed)), len(sites(target, measure.embed)), **options)
    state = partial / "checkpoints" / "cka.pt"
    first = _resume(metric, state)
    for number, (mine, theirs, kept) in enumerate(batches.starting(first), first):
        place = mine[0].device
        try:
            metric.update(mine, [layer.to(place) for layer in theirs], None if kept is None else kept.to(place), number)
        except ValueError as error:
            raise DataError(f"batch {number} of {source.name} (source) and {target.name} (target): {error}") from error
        if (number + 1) % KEPT_EVERY == 0:
            _keep(metric, number + 1, state)
            log.info("batch %d of %d", number + 1, batches.total)
        if measure.stop_at_width and (number + 1) % LOOK_EVERY == 0:
            widest = metric.compute().widest_interval()
            if widest < measure.stop_at_width:
                log.info("after %d batches every interval is narrower than %g", number + 1, measure.stop_at_width)
                break
    if not metric.update_called:
        raise DataError(f"there is too little text for one batch of {measure.tokens_per_batch} words")
    result = metric.compute()
    if len(result.hsics) < measure.batches and not measure.stop_at_width:
        log.warning("%d batches of the %d asked for: there is no more text", len(result.hsics), measure.batches)
    return result


def _resume(metric: CKA, state: Path) -> int:
    """How many batches an earlier run left."""
    if not state.exists():
        return 0
    try:
        kept = torch.load(state, weights_only=False)
        metric.load_state_dict(kept["metric"])
    except Exception as error:  # whatever unpickling half a file raises
        raise StoreError(f"the state {state} is damaged ({type(error).__name__}); deleting it is safe") from error
    log.info("going on from %s: batch %d", state, kept["batches"])
    return int(kept["batches"])


def _keep(metric: CKA, batches: int, state: Path) -> None:
    state.parent.mkdir(exist_ok=True)
    torch.save({"metric": metric.state_dict(), "batches": batches}, state.with_suffix(".aside"))
    os.replace(state.with_suffix(".aside"), state)


def cells(result: CKAResult, source: FrozenModel, target: FrozenModel, embed: bool) -> pd.DataFrame:
    """One row per pair of layers: across the models, and within each; a layer of -1 is the embedding."""
    across = _block(source, target, result, {"null": result.null, "calibrated": result.calibrated}, embed)
    if source is target:
        return across
    within = [(source, result.within_source), (target, result.within_target)]
    return pd.concat([across, *(_block(model, model, found, {}, embed) for model, found in within)], ignore_index=True)


def _block(
    source: FrozenModel, target: FrozenModel, found: Estimate, more: Mapping[str, Estimate | None], embed: bool
) -> pd.DataFrame:
    layers = list(itertools.product(sites(source, embed), sites(target, embed)))
    columns = {"value": found.value, "low": found.low, "high": found.high}
    columns |= {name: estimate.value for name, estimate in more.items() if estimate}
    table = pd.DataFrame(layers, columns=["source_layer", "target_layer"])
    table.insert(0, "source", source.name)
    table.insert(1, "target", target.name)
    return table.assign(**{name: values.cpu().flatten().numpy() for name, values in columns.items()})


def _warn_of_leverage(result: CKAResult, source: FrozenModel, target: FrozenModel, embed: bool) -> None:
    sides = {source: result.leverage_source, target: result.leverage_target}
    for model, leverages in sides.items():
        for layer, value in zip(sites(model, embed), leverages.tolist(), strict=True):
            if value > LEVERAGE:
                log.warning(
                    "warning: %s layer %d: in some batch one token carries %.0f %% of the variance and decides CKA; "
                    "measure.skip_first_tokens=1 leaves the usual one out",
                    model.name, layer, 100 * value,
                )  # fmt: skip


def _scalars(result: CKAResult) -> dict[str, float]:
    scalars = {"batches": float(len(result.hsics)), "widest_interval": result.widest_interval()}
    if result.value.shape[0] == result.value.shape[1]:
        distance = result.distance()
        ends = ("distance", "distance_low", "distance_high")
        scalars |= dict(zip(ends, map(float, (distance.value, distance.low, distance.high)), strict=True))
        scalars["clipped"] = float(distance.clipped)
    return scalars


def _arrays(result: CKAResult) -> dict[str, np.ndarray]:
    found = {"value": result.value, "within_source": result.within_source.value}
    found |= {"within_target": result.within_target.value, "hsics": result.hsics, "convergence": result.convergence()}
    return {name: values.cpu().numpy() for name, values in found.items()}


def _show(source: FrozenModel, target: FrozenModel, result: CKAResult, scalars: dict[str, float]) -> None:
    """Print what fits on a screen: the cells of equal relative depth, and the distance of equation 2."""
    depth, width = result.value.shape
    print(f"CKA of {source.name} and {target.name}, {len(result.hsics)} batches, 95 % intervals over batches")
    for row in range(depth):
        column = round(row * (width - 1) / max(depth - 1, 1))
        value, low, high = (float(part[row, column]) for part in (result.value, result.low, result.high))
        print(f"  layer {row:3d} with {column:3d}   {value:+.4f}   {low:+.4f} to {high:+.4f}")
    if "distance" in scalars:
        print("  distance between the models (equation 2): {distance:.4f}, "
              "{distance_low:.4f} to {distance_high:.4f}".format(**scalars))  # fmt: skip
