"""Members of a population: fine-tuned models and how alike they are, two by two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import ModelConfig, model_named, options
from thinkalike.config.compose import compose_inner_job
from thinkalike.contrib.populations.config import NLIJob, PopulationJob
from thinkalike.contrib.populations.finetuning import CHECKPOINT, accuracy_on
from thinkalike.contrib.populations.measures import IdentityStitches, identity_stitches
from thinkalike.contrib.populations.pairs import EncodedPairs, PairBatch, Pairs, batches, read_pairs
from thinkalike.errors import DataError, one_of
from thinkalike.instruments import run_job
from thinkalike.job import Work
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.processes import asked, at_boundaries, counted, doing, stop
from thinkalike.states.tokens import sites
from thinkalike.store import Result

GROUPS = ("generalizing", "heuristic")


class Member(NamedTuple):
    """A classifier of a population, and its group."""

    name: str
    group: str
    config: ModelConfig

    def fingerprint(self) -> str:
        return checkpoint_fingerprint(self.config)


def members_of(config: PopulationJob) -> list[Member]:
    """Return the members group by group, fine-tuned where they are not there yet."""
    chosen = config.population
    if chosen.parents:
        return _forked(config)
    if chosen.base:
        return _finetuned(config)
    return [
        Member(made.name, group, made)
        for group in GROUPS
        for number in getattr(chosen, group)
        for made in [_published(str(chosen.members), number)]
    ]


def a_member(config: PopulationJob) -> ModelConfig:
    """Return the configuration of one of the members, or of the model that they are fine-tunings of."""
    chosen = config.population
    return _base(config) if chosen.base else _published(str(chosen.members), (chosen.generalizing or [0])[0])


def members_in(config: PopulationJob) -> int:
    """Return how many members a population has, none of them made."""
    chosen = config.population
    if chosen.base:
        return chosen.per_group * len(chosen.parents or GROUPS)
    return sum(len(getattr(chosen, group) or ()) for group in GROUPS)


def _published(name: str, number: Any) -> ModelConfig:
    if name == "local":
        return ModelConfig(name=str(number), path=str(number))
    return _composed("population.members", name, index=number)


def _base(config: PopulationJob) -> ModelConfig:
    return _composed("population.base", str(config.population.base))


def _composed(setting: str, name: str, **settings: Any) -> ModelConfig:
    one_of(setting, name, options("model"))
    return model_named(name, settings)


def _forked(config: PopulationJob) -> list[Member]:
    """Fine-tune `per_group` children of each parent on a smaller sample of its pairs; they are its group."""
    chosen = config.population
    challenge = read_pairs(config.pairs, "challenge")
    challenge.select(config.pairs.label, config.pairs.heuristic)  # an empty part is refused now, not at the end
    members = []
    for group, words in (chosen.parents or {}).items():
        with doing(f"parent of {group}"):
            parent = _made(config, [f"model={chosen.base}"], [*chosen.parent_options, *words])
        body = ["model=local", f"model.path={parent.folder / CHECKPOINT}", f"model.name={chosen.name}-{group}"]
        kind = [word for word in words if word.startswith("pairs.")]
        for index in range(chosen.per_group):
            with doing(f"member {index + 1} of {chosen.per_group} of {group}"):
                fork = _made(config, body, [*kind, *chosen.options, f"nli.index={index}"])
            members.append(_member(f"{chosen.name}-{group}-{index}", group, fork))
    return members


def _finetuned(config: PopulationJob) -> list[Member]:
    """Return the most and the least accurate on the challenge of as many fine-tunings as the population has.

    Accuracy is that on the half of the challenge by which groups are chosen, see `halves`.
    """
    chosen = config.population
    pairs, _ = halves(config, read_pairs(config.pairs, "challenge"))
    made = []
    for index in range(chosen.size or 0):
        with doing(f"member {index + 1} of {chosen.size}"):
            result = _made(config, [f"model={chosen.base}"], [*chosen.options, f"nli.index={index}"])
        member = _member(f"{chosen.base}-nli-{index}", "", result)
        made.append((accuracy_on(load_model(member.config), pairs), member))
    ranked = [member for _, member in sorted(made, key=lambda each: -each[0])]
    groups = zip(GROUPS, (ranked[: chosen.per_group], ranked[: -chosen.per_group - 1 : -1]), strict=True)
    return [member._replace(group=group) for group, best in groups for member in best]


def _made(config: PopulationJob, body: Sequence[str], words: Sequence[str]) -> Result:
    """Return a fine-tuning by these words of task=nli, on the population's pairs but for what words say of them."""
    scale = f"scale={'mini' if _base(config).mini else 'paper'}"  # forks are in folders, which have none
    job = compose_inner_job("train", ["task=nli", *body, scale, *words, "logger=none"])
    assert isinstance(job, NLIJob)
    own = {word.partition("=")[0].removeprefix("pairs.") for word in words if word.startswith("pairs.")}
    job.pairs = replace(config.pairs, **{name: getattr(job.pairs, name) for name in own})
    job.store, job.threads = config.store, config.threads
    return run_job(job)


def _member(name: str, group: str, made: Result) -> Member:
    context = made.config["nli"]["context"]
    return Member(name, group, ModelConfig(name=name, path=str(made.folder / CHECKPOINT), context=context))


def halves(config: PopulationJob, challenge: Pairs) -> tuple[Pairs, Pairs]:
    """Return the pairs of the challenge by which groups are chosen, and those that judge them, which are others."""
    part = challenge.select(config.pairs.label, config.pairs.heuristic)
    if config.population.base is None or config.population.parents:
        return part, part
    return part.take(range(0, len(part), 2)), part.take(range(1, len(part), 2))


KEPT_EVERY = 10  # batches of stitches
LEAST_BATCHES = 4  # of CKA where a pair is one row, so that there is an interval
STITCHES = "stitches"  # the checkpoint of a job


class PopulationCKA(NamedTuple):
    """CKA of every two models at each layer, and what it comes from."""

    value: Float[Tensor, "m m l"]
    hsics: Float[Tensor, "b m m l"]  # of each batch
    facts: dict[str, Any]  # how many pairs and rows


def stitched_members(
    models: Sequence[FrozenModel], encoded: EncodedPairs, pairs: Pairs, measure: Any, work: Work
) -> IdentityStitches:
    """Return losses and predicted classes of all stitches (source, target, cut, pair), `measure.batch` pairs at once.

    A checkpoint is kept every few batches, from which an interrupted job resumes. Processes share the batches.
    """
    if (kept := work.resume(STITCHES)) is not None:
        found, first = IdentityStitches(kept["losses"], kept["predicted"]), int(kept["batches"])
    else:
        shape, first = (len(models), len(models), models[0].n_layers + 1, len(pairs)), 0
        found = IdentityStitches(torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.int8))
    parts, new = list(batches(encoded, measure.batch)), list[tuple[Any, IdentityStitches]]()
    processes = work.processes

    def add(batch: PairBatch) -> None:
        labels, mask = pairs.labels[batch.rows], batch.mask.long()
        part = identity_stitches(
            models, batch.tokens, labels, pairs.classes, mask=mask, types=batch.types, at_once=measure.at_once
        )
        new.append((batch.rows, part))

    def gather() -> None:
        for rows, part in itertools.chain.from_iterable(processes.everyone(new)):
            for whole, own in zip(found, part, strict=True):
                whole[..., rows] = own
        new.clear()

    with at_boundaries(), doing("batch of stitches", len(parts), first) as activity:
        for before in range(first, len(parts), processes.size):
            if before + processes.rank < len(parts):
                add(parts[before + processes.rank])
            done = min(before + processes.size, len(parts))
            activity.reach(done)
            is_asked = any(processes.everyone(asked()))
            if is_asked or done // KEPT_EVERY > before // KEPT_EVERY:
                gather()
                if not processes.rank:
                    work.keep(STITCHES, {**found._asdict(), "batches": done})
            if is_asked:
                stop(f"at batch {done} of {len(parts)}")
        gather()
    processes.end_of_share()
    return found


def likeness_of_members(models: Sequence[FrozenModel], encoded: EncodedPairs, measure: Any) -> PopulationCKA:
    """Return CKA of every two models at each layer; a DataError says that there are too few pairs, or states have none.

    The settings are those of `population.PopulationMeasureConfig`.
    """
    from thinkalike.measures.metric import CKA

    count, rows = min(measure.cka_pairs or len(encoded), len(encoded)), measure.tokens_per_batch
    rows = min(rows, count // LEAST_BATCHES) if measure.tokens == "cls" else rows
    m = len(models)
    metrics = [CKA(m, m) for _ in range(models[0].n_layers)]
    for states in counted(_states(models, encoded, measure, rows, count), "batch of CKA"):
        for number, (metric, layer) in enumerate(zip(metrics, zip(*states, strict=True), strict=True)):
            try:
                metric.update(layer, layer)
            except ValueError as error:  # what it calls layers are models
                raise DataError(f"block {number} of {', '.join(model.name for model in models)}: {error}") from error
    if not metrics[0].update_called:
        raise DataError("too few pairs for measure.tokens_per_batch; lower it, or let CKA read more")
    results = [metric.compute() for metric in metrics]
    hsics = torch.stack([each.hsics[:, :m, :m] for each in results], -1)
    value = torch.stack([each.as_found for each in results], -1)  # with its bias: no interval stands beside it
    facts = {"tokens": measure.tokens, "pairs": count, "rows_per_batch": rows, "batches": len(hsics)}
    return PopulationCKA(value, hsics, facts)


def _states(
    models: Sequence[FrozenModel], encoded: EncodedPairs, measure: Any, rows: int, pairs: int
) -> Iterator[list[list[Float[Tensor, "n d"]]]]:
    """Yield states by model and layer, of `rows` tokens of pairs at a time; the rest at the end is dropped.

    Pairs come in random order, so that batches differ by chance alone; the first `pairs` of them are read.
    """
    order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(0)).tolist()[:pairs]
    waiting: list[list[list[Tensor]]] = []
    for start in range(0, len(order), measure.batch):
        batch, found = encoded.batch(order[start : start + measure.batch]), {}
        chosen = batch.mask.clone()
        if measure.tokens == "cls":
            chosen[:, 1:] = False
        for model in dict.fromkeys(models):  # the whole states of one at a time
            layers = model.residuals(batch.tokens.long(), sites(model), batch.mask.long(), batch.types)
            found[model] = [layer[chosen.to(layer.device)].cpu() for layer in layers]
        waiting.append([found[model] for model in models])
        while sum(len(part[0][0]) for part in waiting) >= rows:
            whole = [[torch.cat(parts) for parts in zip(*own, strict=True)] for own in zip(*waiting, strict=True)]
            yield [[layer[:rows] for layer in own] for own in whole]
            waiting = [[[layer[rows:] for layer in own] for own in whole]]
