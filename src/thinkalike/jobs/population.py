"""measure=population: identity stitches and CKA of all pairs of a population of classifiers."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.activations import counted, token_states
from thinkalike.classification import Outcome, check_labels, identity_stitches
from thinkalike.config import AnalyzeConfig, ModelConfig, PopulationMeasureConfig, compose_job
from thinkalike.data import MNLI, EncodedPairs, PairBatch, Pairs, batches, encode
from thinkalike.errors import ConfigError, DataError, ModelError
from thinkalike.jobs.nli import CHECKPOINT, accuracy, nli
from thinkalike.jobs.pairs import asked, part_name, read_pairs
from thinkalike.jobs.steps import finished, prepare, settings_of
from thinkalike.measures import CKA
from thinkalike.models import EMBED, FrozenModel, checkpoint_fingerprint, load_model, same_vocabulary
from thinkalike.populations import grouped
from thinkalike.store import Job, key_of

log = logging.getLogger(__name__)

STITCH_BATCH, CHECKED = 64, 300
GROUPS = ("generalizing", "heuristic")


@dataclass(frozen=True)
class Member:
    """A classifier of a population, and its group."""

    name: str
    group: str
    config: ModelConfig


def population(config: AnalyzeConfig) -> Path:
    """Stitch every two members at every cut, and compare every two layer by layer, on the pairs of `measure.side`.

    Leaves accuracies and penalties of all stitches in table.csv, CKA in cka.csv, and both by example or batch in
    arrays.npz.
    """
    measure = config.measure
    assert isinstance(measure, PopulationMeasureConfig)
    pairs = read_pairs(config.pairs, measure.side)
    pairs = asked(config.pairs, pairs) if measure.side == "challenge" else pairs
    members = members_of(config)
    if twice := [name for name, count in Counter(each.name for each in members).items() if count > 1]:
        raise ConfigError(f"population={config.population.name} names {twice[0]} twice")
    digests = {"pairs": pairs.fingerprint()} | {each.name: checkpoint_fingerprint(each.config) for each in members}
    settings = settings_of(config, "measure", "pairs", "population")
    job = Job(config.store, "population", key_of(settings, digests), settings)
    if finished(job, config.force):
        return job.folder
    with job.running():
        prepare(config.seed, config.threads)
        models = _load(members, config, pairs)
        encoded = _encode(pairs, models, config)
        stitched = _stitched(models, encoded, pairs, measure.at_once)
        likeness, hsics = _likeness(models, encoded, measure)
        table = _table(members, models[0].n_layers, stitched)
        _cells(members, likeness).to_csv(job.out() / "cka.csv", index=False)
        _show(members, stitched, likeness)
        arrays = {"losses": stitched.losses.float().numpy(), "correct": stitched.correct.numpy()}
        arrays |= {"cka": likeness.numpy(), "hsics": hsics.numpy()}
        own = table[table["source"] == table["target"]].groupby("group_of_source")["accuracy"].mean()
        facts = {"source": pairs.source, "count": len(pairs), "truncated": encoded.truncated, **digests}
        described = {"models": [model.describe() for model in models], "pairs": facts, "seed": config.seed}
        return job.finish({f"accuracy_{group}": float(own[group]) for group in GROUPS}, table, described, arrays)


def members_of(config: AnalyzeConfig) -> list[Member]:
    """The members, the generalizing first, fine-tuned where they are not there yet."""
    chosen = config.population
    if chosen.base:
        return _finetuned(config)
    return [
        Member(made.name, group, made)
        for group in GROUPS
        for number in getattr(chosen, group)
        for made in [_published(str(chosen.members), number)]
    ]


def _published(name: str, number: Any) -> ModelConfig:
    if name == "local":
        return ModelConfig(name=str(number), path=str(number))
    config: ModelConfig = compose_job("train", [f"model={name}", f"model.index={number}"]).model
    return config


def _finetuned(config: AnalyzeConfig) -> list[Member]:
    """The most and the least accurate on the challenge of as many fine-tunings as the population has."""
    chosen, found = config.population, []
    asked(config.pairs, read_pairs(config.pairs, "challenge"))  # an empty part is refused now, not after training
    for index in range(chosen.size):
        log.info("member %d of %d", index + 1, chosen.size)
        job = compose_job("train", ["task=nli", f"model={chosen.base}", f"nli.index={index}", "logger=none"])
        job.store, job.pairs, job.trainer.threads = config.store, config.pairs, config.threads
        folder = nli(job)
        found.append((accuracy(pd.read_csv(folder / "table.csv"), part_name(config.pairs)), index, folder))
    ranked = sorted(found, reverse=True)
    groups = {"generalizing": ranked[: chosen.per_group], "heuristic": ranked[-chosen.per_group :]}
    return [
        Member(
            f"{chosen.base}-nli-{index}",
            group,
            ModelConfig(name=f"{chosen.base}-nli-{index}", path=str(folder / CHECKPOINT), context=job.nli.context),
        )
        for group, best in groups.items()
        for _, index, folder in best
    ]


def _load(members: list[Member], config: AnalyzeConfig, pairs: Pairs) -> list[FrozenModel]:
    """The models, whose labels are checked on pairs that they should get right."""
    models = [load_model(each.config) for each in members]
    for model in models:
        if not model.classes:
            raise ModelError(f"{model.name} is no classifier; a population is of classifiers of pairs")
        same_vocabulary(models[0], model)
    own = "report" if len(models[0].classes) == len(MNLI) else "challenge"
    known = pairs if pairs.classes == MNLI else read_pairs(config.pairs, own)
    part = known.sample(min(CHECKED, len(known)), config.seed)
    whole = _encode(part, models, config).batch(range(len(part)))
    for model in models:
        logits = model.full(whole.tokens, whole.mask.long(), whole.types).cpu()
        check_labels(logits, part.labels, model.classes, part.classes, name=model.name)
    return models


def _encode(pairs: Pairs, models: list[FrozenModel], config: AnalyzeConfig) -> EncodedPairs:
    context = min(model.context for model in models)
    return encode(pairs, models[0].tokenizer, context, config.pairs.truncate)


def _stitched(models: list[FrozenModel], encoded: EncodedPairs, pairs: Pairs, at_once: int) -> Outcome:
    """Losses and correctness (source, target, cut, pair)."""
    shape = len(models), len(models), models[0].n_layers + 1, len(pairs)
    losses, correct = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)
    parts = list(batches(encoded, STITCH_BATCH))
    for number, batch in enumerate(parts, 1):
        labels, mask = pairs.labels[batch.rows], batch.mask.long()
        found = identity_stitches(
            models, batch.tokens, labels, pairs.classes, mask=mask, types=batch.types, at_once=at_once
        )
        losses[..., batch.rows], correct[..., batch.rows] = found.losses, found.correct
        if number % 10 == 0:
            log.info("stitched batch %d of %d", number, len(parts))
    return Outcome(losses, correct)


def _likeness(
    models: list[FrozenModel], encoded: EncodedPairs, measure: PopulationMeasureConfig
) -> tuple[Float[Tensor, "m m l"], Float[Tensor, "b m m l"]]:
    """CKA of every two models at each layer, and the HSIC of each batch that it comes from."""
    metrics = [CKA(len(models), len(models)) for _ in range(models[0].n_layers)]
    for rows in _rows(models, encoded, measure):
        for number, (metric, layer) in enumerate(zip(metrics, rows, strict=True)):
            try:
                metric.update(layer, layer)
            except ValueError as error:  # what it calls layers are models
                raise DataError(f"block {number} of {', '.join(model.name for model in models)}: {error}") from error
    if not metrics[0].update_called:
        raise DataError(f"too few pairs for measure.tokens_per_batch={measure.tokens_per_batch}; lower it")
    results, m = [metric.compute() for metric in metrics], len(models)
    hsics = torch.stack([each.hsics[:, :m, :m] for each in results], -1)
    return torch.stack([each.value for each in results], -1), hsics


def _rows(
    models: list[FrozenModel], encoded: EncodedPairs, measure: PopulationMeasureConfig
) -> Iterator[list[list[Float[Tensor, "n d"]]]]:
    """Batches of as many tokens of all models, by layer and model; pairs come in random order, as batches are folds."""
    order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(0)).tolist()
    kept: list[list[list[Tensor]]] = []
    for start in range(0, len(order), STITCH_BATCH):
        kept.append(_states(models, encoded.batch(order[start : start + STITCH_BATCH]), measure))
        while sum(len(part[0][0]) for part in kept) >= measure.tokens_per_batch:
            layers = [[torch.cat(states) for states in zip(*layer, strict=True)] for layer in zip(*kept, strict=True)]
            yield [[states[: measure.tokens_per_batch] for states in layer] for layer in layers]
            kept = [[[states[measure.tokens_per_batch :] for states in layer] for layer in layers]]


def _states(models: list[FrozenModel], batch: PairBatch, measure: PopulationMeasureConfig) -> list[list[Tensor]]:
    """States of the tokens that count, by layer and model."""
    mask = batch.mask.long()
    states = token_states(models, batch.tokens, mask=mask, types=batch.types, site=measure.site)
    chosen = counted(batch.tokens, mask=mask, include_padding=measure.include_padding)
    return [[own[layer].cpu()[chosen] for own in states] for layer in range(models[0].n_layers)]


def _table(members: list[Member], layers: int, stitched: Outcome) -> pd.DataFrame:
    """One row per source, target and cut; the penalty is what the target loses of its own accuracy and loss."""
    accuracy, loss = stitched.correct.double().mean(-1), stitched.losses.mean(-1)
    own = torch.arange(len(members))
    values = {
        "accuracy": accuracy,
        "loss": loss,
        "accuracy_penalty": accuracy[own, own][None] - accuracy,
        "loss_penalty": loss - loss[own, own][None],
    }
    return _long(members, range(EMBED, layers), "cut", values)


def _cells(members: list[Member], likeness: Float[Tensor, "m m l"]) -> pd.DataFrame:
    return _long(members, range(likeness.shape[-1]), "layer", {"value": likeness})


def _long(members: list[Member], places: range, place: str, values: dict[str, Tensor]) -> pd.DataFrame:
    rows = itertools.product(members, members, places)
    table = pd.DataFrame(
        [(a.name, b.name, a.group, b.group, at) for a, b, at in rows],
        columns=["source", "target", "group_of_source", "group_of_target", place],
    )
    return table.assign(**{name: value.flatten().numpy() for name, value in values.items()})


def _show(members: list[Member], stitched: Outcome, likeness: Float[Tensor, "m m l"]) -> None:
    groups = [each.group for each in members]
    accuracy = stitched.correct.double().mean(-1)
    own = torch.arange(len(members))
    penalty = grouped(accuracy[own, own][None] - accuracy, groups)
    alike = grouped(likeness, groups)
    print("mean over pairs of models, 95 % intervals over models: within a group, and between")
    for cut in range(accuracy.shape[-1]):
        line = f"  cut {cut - 1:3d}   accuracy penalty {_span(penalty.within, cut)}   {_span(penalty.between, cut)}"
        print(line + (f"   CKA {_span(alike.within, cut - 1)}   {_span(alike.between, cut - 1)}" if cut else ""))


def _span(estimate: Any, place: int) -> str:
    value, low, high = (float(part[place]) for part in (estimate.value, estimate.low, estimate.high))
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
