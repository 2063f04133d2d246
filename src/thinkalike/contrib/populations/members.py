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
    """Return the classifiers of a population, group by group.

    They are published ones, or they are fine-tuned here unless the store has them already.
    """
    population = config.population
    if population.parents:
        return _children_of_parents(config)
    if population.base:
        return _best_and_worst(config)

    members = []
    for group in GROUPS:
        for number in getattr(population, group):
            model = _published_model(str(population.members), number)
            members.append(Member(model.name, group, model))
    return members


def member_shape(config: PopulationJob) -> ModelConfig:
    """Return the configuration of a model with the shape (depth, width) of a population's members.

    It is one of the members, or the pretrained model that they are fine-tuned from.
    """
    population = config.population
    if population.base:
        return _base_model(config)
    number = (population.generalizing or [0])[0]
    return _published_model(str(population.members), number)


def count_members(config: PopulationJob) -> int:
    """Return how many members the population has, without loading or fine-tuning any."""
    population = config.population
    if population.base:
        return population.per_group * len(population.parents or GROUPS)
    return sum(len(getattr(population, group) or ()) for group in GROUPS)


def challenge_pairs_by_use(config: PopulationJob, challenge: Pairs) -> tuple[Pairs, Pairs]:
    """Return the challenge pairs that form the groups, and those that compare the groups.

    If the groups are the most and the least accurate members on the challenge, the two sets are
    disjoint halves, so that a group is not judged on the pairs that it was selected on. If the
    groups are known beforehand, both sets are all pairs.
    """
    pairs = challenge.select(config.pairs.label, config.pairs.heuristic)
    is_ranked = config.population.base is not None and not config.population.parents
    if not is_ranked:
        return pairs, pairs
    pairs_to_select_on = pairs.take(range(0, len(pairs), 2))
    pairs_to_compare_on = pairs.take(range(1, len(pairs), 2))
    return pairs_to_select_on, pairs_to_compare_on


# ---- Published members.


def _published_model(name: str, number: int | str) -> ModelConfig:
    """Return a numbered model, or the model in the folder `number` if the name is "local"."""
    if name == "local":
        return ModelConfig(name=str(number), path=str(number))
    one_of("population.members", name, options("model"))
    return model_named(name, {"index": number})


def _base_model(config: PopulationJob) -> ModelConfig:
    """Return the model that members are fine-tuned from."""
    name = str(config.population.base)
    one_of("population.base", name, options("model"))
    return model_named(name, {})


# ---- Members that are fine-tuned here.


def _children_of_parents(config: PopulationJob) -> list[Member]:
    """Return the members of a population in which each group has a parent of its own.

    A parent is fine-tuned from the base on a kind of pairs. Each of its `per_group` children is
    the parent, fine-tuned once more on a smaller sample of the same kind of pairs.
    """
    population = config.population
    challenge = read_pairs(config.pairs, "challenge")
    # The result is not used: an error is raised here, before hours of fine-tuning, if there are no
    # such pairs.
    challenge.select(config.pairs.label, config.pairs.heuristic)

    members = []
    for group, arguments in (population.parents or {}).items():
        with doing(f"parent of {group}"):
            parent = _finetuned(
                config, [f"model={population.base}"], [*population.parent_options, *arguments]
            )
        start = [
            "model=local",
            f"model.path={parent.folder / CHECKPOINT}",
            f"model.name={population.name}-{group}",
        ]
        arguments_of_pairs = [
            argument for argument in arguments if argument.startswith(PAIRS_PREFIX)
        ]
        for index in range(population.per_group):
            with doing(f"member {index + 1} of {population.per_group} of {group}"):
                child = _finetuned(
                    config, start, [*arguments_of_pairs, *population.options, f"nli.index={index}"]
                )
            members.append(_member_from_result(f"{population.name}-{group}-{index}", group, child))
    return members


def _best_and_worst(config: PopulationJob) -> list[Member]:
    """Return the most and the least accurate of `size` fine-tunings of the base, as two groups.

    The accuracy is that on one half of the challenge; the groups are compared on the other half.
    """
    population = config.population
    pairs_to_select_on, _ = challenge_pairs_by_use(config, read_pairs(config.pairs, "challenge"))
    members = []
    accuracies = {}
    for index in range(population.size or 0):
        with doing(f"member {index + 1} of {population.size}"):
            result = _finetuned(
                config, [f"model={population.base}"], [*population.options, f"nli.index={index}"]
            )
        member = _member_from_result(f"{population.base}-nli-{index}", "", result)
        members.append(member)
        accuracies[member.name] = accuracy_on(load_model(member.config), pairs_to_select_on)

    ranked = sorted(members, key=lambda member: -accuracies[member.name])
    best = ranked[: population.per_group]
    worst = ranked[::-1][: population.per_group]  # the worst one first
    generalizing, heuristic = GROUPS
    return [
        *(member._replace(group=generalizing) for member in best),
        *(member._replace(group=heuristic) for member in worst),
    ]


def _finetuned(config: PopulationJob, start: Sequence[str], arguments: Sequence[str]) -> Result:
    """Fine-tune a model on the population's pairs (task=nli), or return the stored result.

    Args:
        config: The job of the population.
        start: Arguments of the command line that name the model that training starts from.
        arguments: Further arguments, such as "nli.epochs=2". Those that begin with "pairs."
            replace settings of the population's pairs.
    """
    # A child starts from a folder, which does not say whether its model is a mini.
    scale = "mini" if _base_model(config).mini else "paper"
    overrides = ["task=nli", *start, f"scale={scale}", *arguments, "logger=none"]
    job = compose_inner_job("train", overrides)
    assert isinstance(job, NLIJob)

    set_by_arguments = {}
    for argument in arguments:
        if argument.startswith(PAIRS_PREFIX):
            name = argument.partition("=")[0].removeprefix(PAIRS_PREFIX)
            set_by_arguments[name] = getattr(job.pairs, name)
    job.pairs = replace(config.pairs, **set_by_arguments)
    job.store = config.store
    job.threads = config.threads
    return run_job(job)


def _member_from_result(name: str, group: str, finetuned: Result) -> Member:
    """Return the member of a population whose checkpoint is in a result of fine-tuning.

    Args:
        name: The name of the member in tables.
        group: The name of its group.
        finetuned: The result of task=nli, in whose folder the checkpoint is.
    """
    path = str(finetuned.folder / CHECKPOINT)
    context = finetuned.config["nli"]["context"]
    return Member(name, group, ModelConfig(name=name, path=path, context=context))
