"""The members of a population: fine-tuned classifiers, published or made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from thinkalike.config import ModelConfig, model_named, options
from thinkalike.config.compose_jobs import compose_inner_job
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


class ChallengePairs(NamedTuple):
    """The pairs of a challenge set by their use.

    Attributes:
        to_form_groups: Those on which the most and the least accurate classifiers are found.
        to_compare: Those on which the groups of classifiers are compared.
    """

    to_form_groups: Pairs
    to_compare: Pairs


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

    There are three kinds of populations. With `parents`, each group is fine-tuned from a parent, a
    model that was fine-tuned on data of its own. With only a `base`, many classifiers are
    fine-tuned from it, and the most and the least accurate ones are the groups. With neither, the
    settings list published classifiers: the numbers or folders of each of the two `GROUPS`.
    Fine-tuned classifiers are taken from the store if it has them.
    """
    population = config.population
    if population.parents:
        return _children_of_parents(config)
    if population.base:
        return _best_and_worst(config)

    members = []
    for group in GROUPS:
        for number_or_folder in getattr(population, group):
            model = _published_model(str(population.members), number_or_folder)
            members.append(Member(model.name, group, model))
    return members


def member_shape(config: PopulationJob) -> ModelConfig:
    """Return a model that has the shape (depth, width) of all classifiers of a population.

    It is the pretrained model that they are fine-tuned from. If they are published, it is the
    first classifier of the group "generalizing", or number 0 of the series if no group is listed.
    """
    population = config.population
    if population.base:
        return _base_model(config)
    number_or_folder: int | str = 0
    if population.generalizing:
        number_or_folder = population.generalizing[0]
    return _published_model(str(population.members), number_or_folder)


def count_members(config: PopulationJob) -> int:
    """Return how many classifiers the population has, without loading or fine-tuning any.

    If `population.base` is set, they are fine-tuned, with `per_group` of them in each group. There
    is a group for each parent (a classifier that the others are fine-tuned from) or, if there are
    no parents, two groups. If `base` is None, they are published classifiers, which the settings
    `generalizing` and `heuristic` list.
    """
    population = config.population
    if population.base:
        groups = population.parents or GROUPS
        return population.per_group * len(groups)
    return sum(len(getattr(population, group) or ()) for group in GROUPS)


def challenge_pairs_by_use(config: PopulationJob, challenge: Pairs) -> ChallengePairs:
    """Return the challenge pairs to group classifiers by, and those to compare the groups on.

    If the groups are the most and the least accurate classifiers on challenge pairs, the two sets
    are disjoint halves, so that groups are not compared on the pairs that they were selected on.
    If the groups are known beforehand, each of the two sets has all pairs.

    Args:
        config: The job. Only challenge pairs of its label and heuristic are used.
        challenge: All pairs of the challenge set: pairs of sentences that a heuristic gets wrong.
    """
    pairs = challenge.select(config.pairs.label, config.pairs.heuristic)
    # Classifiers that are fine-tuned from one base are grouped by their accuracy. The groups of
    # all others are known: each parent has one, and the job lists those of published classifiers.
    is_grouped_by_accuracy = config.population.base is not None and not config.population.parents
    if not is_grouped_by_accuracy:
        return ChallengePairs(to_form_groups=pairs, to_compare=pairs)
    return ChallengePairs(
        to_form_groups=pairs.take(range(0, len(pairs), 2)),
        to_compare=pairs.take(range(1, len(pairs), 2)),
    )


# ---- Published members.


def _published_model(name: str, number_or_folder: int | str) -> ModelConfig:
    """Return the configuration of a published classifier.

    Args:
        name: The name of a known model that stands for a series of numbered classifiers; "local":
            the classifier is in a folder.
        number_or_folder: The number of the classifier in the series, or its folder.

    Raises:
        ConfigError: There is no series of this name.
    """
    if name == "local":
        folder = str(number_or_folder)
        return ModelConfig(name=folder, path=folder)
    one_of("population.members", name, options("model"))
    return model_named(name, {"index": number_or_folder})


def _base_model(config: PopulationJob) -> ModelConfig:
    """Return the pretrained model that all classifiers of the population are fine-tuned from."""
    name = str(config.population.base)
    one_of("population.base", name, options("model"))
    return model_named(name, {})


# ---- Members that are fine-tuned here.


def _children_of_parents(config: PopulationJob) -> list[Member]:
    """Return the classifiers of a population in which each group has a parent of its own.

    The parent of a group is the base model, fine-tuned with the command-line arguments of that
    group, such as which pairs of sentences to train on, and `parent_options`, which all parents
    share. Each of its `per_group` children is the parent, fine-tuned once more with those of the
    group's arguments that choose pairs, and `options`, which all children share. The children of
    one parent differ in their index, which is a seed. The children are returned.
    """
    population = config.population
    challenge = read_pairs(config.pairs, "challenge")
    # The result is not used: if there are no such pairs, an error is raised here, before hours of
    # fine-tuning.
    challenge.select(config.pairs.label, config.pairs.heuristic)

    members = []
    for group, arguments in (population.parents or {}).items():
        with doing(f"parent of {group}"):
            base = [f"model={population.base}"]
            parent = _finetuned(config, base, [*population.parent_options, *arguments])
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
    """Fine-tune the base model `size` times; return the most and the least accurate classifiers.

    They are two groups of `per_group` classifiers each, "generalizing" and "heuristic": pairs of
    the challenge set are pairs of sentences that a heuristic gets wrong. The accuracy is measured
    on one half of these pairs; the groups are compared on the other half.
    """
    population = config.population
    challenge = read_pairs(config.pairs, "challenge")
    pairs_to_form_groups = challenge_pairs_by_use(config, challenge).to_form_groups
    members = []
    accuracies = {}
    for index in range(population.size or 0):
        with doing(f"member {index + 1} of {population.size}"):
            # The index is the seed of the fine-tuning.
            result = _finetuned(
                config, [f"model={population.base}"], [*population.options, f"nli.index={index}"]
            )
        member = _member_from_result(f"{population.base}-nli-{index}", "", result)
        members.append(member)
        accuracies[member.name] = accuracy_on(load_model(member.config), pairs_to_form_groups)

    best_first = sorted(members, key=lambda member: -accuracies[member.name])
    worst_first = best_first[::-1]
    generalizing, heuristic = GROUPS  # the names of the groups
    return [
        *(member._replace(group=generalizing) for member in best_first[: population.per_group]),
        *(member._replace(group=heuristic) for member in worst_first[: population.per_group]),
    ]


def _finetuned(config: PopulationJob, start: Sequence[str], arguments: Sequence[str]) -> Result:
    """Fine-tune a model on pairs of sentences (task=nli), or return the stored result.

    The pairs of sentences are those of the population's job: its settings replace the defaults of
    task=nli. Settings of pairs in `arguments` replace both.

    Args:
        config: The job of the population.
        start: Arguments of the command line that name the model that training starts from.
        arguments: Further arguments of the command line, such as "nli.epochs=2" or
            "pairs.seed=1".
    """
    # A model in a folder does not say whether it is a mini (a small bundled model), so the scale
    # of the training is that of the base model.
    scale = "mini" if _base_model(config).mini else "paper"
    overrides = ["task=nli", *start, f"scale={scale}", *arguments, "logger=none"]
    job = compose_inner_job("train", overrides)
    assert isinstance(job, NLIJob)

    # The pairs are those of the population's job, except for settings that `arguments` change. The
    # composed job has parsed these, so their values are taken from it.
    changed_pair_settings = {}
    for argument in arguments:
        if argument.startswith(PAIRS_PREFIX):
            name = argument.partition("=")[0].removeprefix(PAIRS_PREFIX)
            changed_pair_settings[name] = getattr(job.pairs, name)
    job.pairs = replace(config.pairs, **changed_pair_settings)
    job.store = config.store
    job.threads = config.threads
    return run_job(job)


def _member_from_result(name: str, group: str, finetuned: Result) -> Member:
    """Return the classifier whose checkpoint is in a result of fine-tuning.

    Args:
        name: The name of the classifier in tables.
        group: The name of its group in the population.
        finetuned: The result of task=nli, in whose folder the checkpoint is.
    """
    path = str(finetuned.folder / CHECKPOINT)
    context = finetuned.config["nli"]["context"]
    return Member(name, group, ModelConfig(name=name, path=path, context=context))
