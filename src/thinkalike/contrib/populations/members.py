"""The members of a population: fine-tuned classifiers, published or made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from thinkalike.config import ModelConfig, model_named, options
from thinkalike.config.compose import compose_inner_job
from thinkalike.contrib.populations.config import NLIJob, PopulationJob
from thinkalike.contrib.populations.finetuning import CHECKPOINT, accuracy_on
from thinkalike.contrib.populations.pair_sets import read_pairs
from thinkalike.contrib.populations.pairs import Pairs
from thinkalike.errors import one_of
from thinkalike.instruments import run_job
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.load import load_model
from thinkalike.processes import doing
from thinkalike.store import Result

GROUPS = ("generalizing", "heuristic")
PAIRS_PREFIX = "pairs."  # of words of a command line that set something of the pairs


class Member(NamedTuple):
    """A classifier of a population, and its group.

    Attributes:
        name: What results call it.
        group: The name of its group.
        config: How it is loaded.
    """

    name: str
    group: str
    config: ModelConfig

    def fingerprint(self) -> str:
        """Return the fingerprint of its checkpoint, which says what is in it."""
        return checkpoint_fingerprint(self.config)


def members_of(config: PopulationJob) -> list[Member]:
    """Return the members group by group, after fine-tuning those that the store lacks."""
    population = config.population
    if population.parents:
        return _children_of_parents(config)
    if population.base:
        return _best_and_worst(config)

    members = []
    for group in GROUPS:
        for number in getattr(population, group):
            model = _published(str(population.members), number)
            members.append(Member(model.name, group, model))
    return members


def member_shape(config: PopulationJob) -> ModelConfig:
    """Return a model with the shape of all members: one of them, or the model they start from."""
    population = config.population
    if population.base:
        return _base(config)
    number = (population.generalizing or [0])[0]
    return _published(str(population.members), number)


def count_members(config: PopulationJob) -> int:
    """Return how many members the population has, without making any."""
    population = config.population
    if population.base:
        return population.per_group * len(population.parents or GROUPS)
    return sum(len(getattr(population, group) or ()) for group in GROUPS)


def halves(config: PopulationJob, challenge: Pairs) -> tuple[Pairs, Pairs]:
    """Return the challenge pairs that choose the groups, and the pairs that judge the groups.

    Where members are ranked on the challenge, the two are disjoint; otherwise both are all pairs.
    """
    pairs = challenge.select(config.pairs.label, config.pairs.heuristic)
    is_ranked = config.population.base is not None and not config.population.parents
    if not is_ranked:
        return pairs, pairs
    choosing = pairs.take(range(0, len(pairs), 2))
    judging = pairs.take(range(1, len(pairs), 2))
    return choosing, judging


# ---- Published members.


def _published(name: str, number: int | str) -> ModelConfig:
    """Return a numbered model, or the model in the folder `number` if the name is "local"."""
    if name == "local":
        return ModelConfig(name=str(number), path=str(number))
    one_of("population.members", name, options("model"))
    return model_named(name, {"index": number})


def _base(config: PopulationJob) -> ModelConfig:
    """Return the model that members are fine-tuned from."""
    name = str(config.population.base)
    one_of("population.base", name, options("model"))
    return model_named(name, {})


# ---- Members that are fine-tuned here.


def _children_of_parents(config: PopulationJob) -> list[Member]:
    """Return `per_group` children of each parent, which are its group.

    A child is the parent, fine-tuned once more on a smaller sample of the parent's kind of pairs.
    """
    population = config.population
    challenge = read_pairs(config.pairs, "challenge")
    # An empty set is refused now, and not after hours.
    challenge.select(config.pairs.label, config.pairs.heuristic)

    members = []
    for group, words in (population.parents or {}).items():
        with doing(f"parent of {group}"):
            parent = _finetuned(
                config, [f"model={population.base}"], [*population.parent_options, *words]
            )
        start = [
            "model=local",
            f"model.path={parent.folder / CHECKPOINT}",
            f"model.name={population.name}-{group}",
        ]
        words_of_pairs = [word for word in words if word.startswith(PAIRS_PREFIX)]
        for index in range(population.per_group):
            with doing(f"member {index + 1} of {population.per_group} of {group}"):
                child = _finetuned(
                    config, start, [*words_of_pairs, *population.options, f"nli.index={index}"]
                )
            members.append(_member(f"{population.name}-{group}-{index}", group, child))
    return members


def _best_and_worst(config: PopulationJob) -> list[Member]:
    """Return the most and the least accurate of `size` fine-tunings of the base.

    Accuracy is that on the half of the challenge that chooses the groups, see `halves`.
    """
    population = config.population
    choosing, _ = halves(config, read_pairs(config.pairs, "challenge"))
    members = []
    accuracies = {}
    for index in range(population.size or 0):
        with doing(f"member {index + 1} of {population.size}"):
            result = _finetuned(
                config, [f"model={population.base}"], [*population.options, f"nli.index={index}"]
            )
        member = _member(f"{population.base}-nli-{index}", "", result)
        members.append(member)
        accuracies[member.name] = accuracy_on(load_model(member.config), choosing)

    ranked = sorted(members, key=lambda member: -accuracies[member.name])
    best = ranked[: population.per_group]
    worst = ranked[: -population.per_group - 1 : -1]  # the worst one first
    generalizing, heuristic = GROUPS
    return [
        *(member._replace(group=generalizing) for member in best),
        *(member._replace(group=heuristic) for member in worst),
    ]


def _finetuned(config: PopulationJob, start: Sequence[str], words: Sequence[str]) -> Result:
    """Return the fine-tuning of a model, by task=nli, on the population's pairs.

    Args:
        config: The job of the population.
        start: Words of a command line that name the model it starts from.
        words: Further words of task=nli. Settings of pairs among them win over the population's.
    """
    # A child starts from a folder, which does not say whether its model is a mini.
    scale = "mini" if _base(config).mini else "paper"
    overrides = ["task=nli", *start, f"scale={scale}", *words, "logger=none"]
    job = compose_inner_job("train", overrides)
    assert isinstance(job, NLIJob)

    set_by_words = {}
    for word in words:
        if word.startswith(PAIRS_PREFIX):
            name = word.partition("=")[0].removeprefix(PAIRS_PREFIX)
            set_by_words[name] = getattr(job.pairs, name)
    job.pairs = replace(config.pairs, **set_by_words)
    job.store = config.store
    job.threads = config.threads
    return run_job(job)


def _member(name: str, group: str, finetuned: Result) -> Member:
    """Return the member that a fine-tuning has made.

    Args:
        name: What tables call the member.
        group: The name of its group.
        finetuned: The result of task=nli, in whose folder the checkpoint is.
    """
    path = str(finetuned.folder / CHECKPOINT)
    context = finetuned.config["nli"]["context"]
    return Member(name, group, ModelConfig(name=name, path=path, context=context))
