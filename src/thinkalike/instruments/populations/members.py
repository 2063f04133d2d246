"""The members of a population of classifiers: published ones, fine-tunings of a base, or forks of parents."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from thinkalike.config import AnalyzeConfig, ModelConfig, check_option, compose_job
from thinkalike.data import Pairs, read_pairs, reported_part
from thinkalike.instruments import run_job
from thinkalike.models import checkpoint_fingerprint, load_model
from thinkalike.progress import doing
from thinkalike.store import Result

log = logging.getLogger(__name__)

CHECKPOINT = "model"  # the folder of a classifier in a result of task=nli
GROUPS = ("generalizing", "heuristic")
PUBLISHED = {"report": "heldout", "challenge": "challenge"}  # lists of population.published by side of the pairs
OF_CHALLENGE = "lexical_overlap", "non-entailment"  # the part that was published
NEAR = 0.005  # of an accuracy: by how much another machine or dtype may change it


class Member(NamedTuple):
    """A classifier of a population, and its group."""

    name: str
    group: str
    config: ModelConfig

    def fingerprint(self) -> str:
        return checkpoint_fingerprint(self.config)


def members_of(config: AnalyzeConfig) -> list[Member]:
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


def a_member(config: AnalyzeConfig) -> ModelConfig:
    """Return the configuration of one of the members, or of the model that they are fine-tunings of."""
    chosen = config.population
    if chosen.base:
        check_option("model", "population.base", [chosen.base])
        base: ModelConfig = compose_job("train", [f"model={chosen.base}"]).model
        return base
    return _published(str(chosen.members), (chosen.generalizing or [0])[0])


def members_in(config: AnalyzeConfig) -> int:
    """Return how many members a population has, none of them made."""
    chosen = config.population
    if chosen.base:
        return chosen.per_group * len(chosen.parents or GROUPS)
    return sum(len(getattr(chosen, group) or ()) for group in GROUPS)


def _published(name: str, number: Any) -> ModelConfig:
    if name == "local":
        return ModelConfig(name=str(number), path=str(number))
    check_option("model", "population.members", [name])
    config: ModelConfig = compose_job("train", [f"model={name}", f"model.index={number}"]).model
    return config


def _forked(config: AnalyzeConfig) -> list[Member]:
    """Return forks of each parent, each a group of its own, on fewer pairs of the kind that their parent had."""
    chosen = config.population
    check_option("model", "population.base", [chosen.base])
    reported_part(config.pairs, read_pairs(config.pairs, "challenge"))  # an empty part is refused now, not at the end
    members = []
    for number, (group, words) in enumerate(chosen.parents.items(), 1):
        with doing(f"parent {number} of {len(chosen.parents)}: {group}"):
            parent = _made(config, [f"model={chosen.base}"], [*chosen.parent_options, *words])
        body = ["model=local", f"model.path={parent.folder / CHECKPOINT}", f"model.name={chosen.name}-{group}"]
        kind = [word for word in words if word.startswith("pairs.")]
        for index in range(chosen.per_group):
            with doing(f"member {index + 1} of {chosen.per_group} of {group}"):
                fork = _made(config, body, [*kind, *chosen.options, f"nli.index={index}"])
            members.append(_member(f"{chosen.name}-{group}-{index}", group, fork))
    return members


def _finetuned(config: AnalyzeConfig) -> list[Member]:
    """Return the most and the least accurate on the challenge of as many fine-tunings as the population has.

    Accuracy is that on the half of the challenge by which groups are chosen, see `halves`.
    """
    from thinkalike.instruments.finetuning import accuracy_on  # Lightning takes seconds to import

    chosen = config.population
    check_option("model", "population.base", [chosen.base])
    pairs, _ = halves(config, read_pairs(config.pairs, "challenge"))
    made = []
    for index in range(chosen.size or 0):
        with doing(f"member {index + 1} of {chosen.size}"):
            result = _made(config, [f"model={chosen.base}"], [*chosen.options, f"nli.index={index}"])
        member = _member(f"{chosen.base}-nli-{index}", "", result)
        made.append((accuracy_on(load_model(member.config), pairs, config.pairs.truncate), member))
    ranked = [member for _, member in sorted(made, key=lambda each: -each[0])]
    groups = zip(GROUPS, (ranked[: chosen.per_group], ranked[: -chosen.per_group - 1 : -1]), strict=True)
    return [member._replace(group=group) for group, best in groups for member in best]


def _made(config: AnalyzeConfig, body: Sequence[str], words: Sequence[str]) -> Result:
    """Return a fine-tuning by these words of task=nli, on the population's pairs but for what words say of them."""
    mini = compose_job("train", [f"model={config.population.base}"]).model.mini
    scale = f"scale={'mini' if mini else 'paper'}"  # forks are in folders, which have none
    job = compose_job("train", ["task=nli", *body, scale, *words, "logger=none"])
    own = {word.partition("=")[0].removeprefix("pairs.") for word in words if word.startswith("pairs.")}
    job.pairs = replace(config.pairs, **{name: getattr(job.pairs, name) for name in own})
    job.store, job.threads = config.store, config.threads
    return run_job(job)


def _member(name: str, group: str, made: Result) -> Member:
    context = made.config["nli"]["context"]
    return Member(name, group, ModelConfig(name=name, path=str(made.folder / CHECKPOINT), context=context))


def published_accuracies(
    config: AnalyzeConfig, members: Sequence[Member], accuracies: Sequence[float], count: int
) -> pd.DataFrame | None:
    """Return the accuracy of each member beside the published one, and say which are not as published; None: no such.

    A sample of the pairs may differ by three standard errors more than all of them, which `pairs.report_pairs=null` or
    `pairs.challenge_pairs=null` ask for.

    Args:
        accuracies: on `count` pairs of `measure.side`.
    """
    side = config.measure.side  # type: ignore[attr-defined]
    known = (config.population.published or {}).get(PUBLISHED[side])
    numbers = [member.config.index for member in members]
    same = side == "report" or (config.pairs.heuristic, config.pairs.label) == OF_CHALLENGE
    if not known or not same or config.pairs.source == "templates" or config.population.members == "local":
        return None
    stated = np.array([known[number] if number < len(known) else np.nan for number in numbers])
    sampled = getattr(config.pairs, f"{side}_pairs") is not None
    tolerance = NEAR + sampled * 3 * np.sqrt(stated * (1 - stated) / count)
    table = pd.DataFrame({
        "model": [member.name for member in members], "accuracy": accuracies, "published": stated,
        "tolerance": tolerance, "as_published": np.abs(np.array(accuracies) - stated) <= tolerance,
    })  # fmt: skip
    for row in table[~table["as_published"] & table["published"].notna()].itertuples():
        log.warning(
            "%s is right on %.4f of %d pairs, and %.4f was published: check model.revision, model.classes and pairs",
            row.model, row.accuracy, count, row.published,
        )  # fmt: skip
    return table


def halves(config: AnalyzeConfig, challenge: Pairs) -> tuple[Pairs, Pairs]:
    """Return the pairs of the challenge by which groups are chosen, and those that judge them, which are others."""
    part = reported_part(config.pairs, challenge)
    if config.population.base is None or config.population.parents:
        return part, part
    return part.take(range(0, len(part), 2)), part.take(range(1, len(part), 2))
