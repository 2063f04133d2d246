"""Settings of sentence-pair classifiers: their pairs, their fine-tuning, their populations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from thinkalike.config import (
    AnalyzeConfig,
    MeasureConfig,
    ModelConfig,
    RecipeJob,
    SettingValues,
    TrainConfig,
    setting,
)
from thinkalike.config.parts import CONTEXT, COUNTS, TOKENS_AT_ONCE
from thinkalike.config.schema import SEEDS, Checked, FilePath
from thinkalike.errors import ConfigError, ModelError

MemberNumber = Annotated[int, Field(ge=0, strict=True)]
CheckpointFolder = Annotated[str, Field(strict=True)]
Group = Annotated[list[MemberNumber | CheckpointFolder], Field(min_length=2)]


@dataclass
class NumberedModel(ModelConfig):
    """A numbered model of a population, or a classifier whose files do not name its classes."""

    # which member of a numbered population
    index: int = setting(0, least=0, most=SEEDS)
    # how many members the population has, numbered from 0
    members: int | None = setting(None, least=1, most=SEEDS, in_key=False)
    # classes of a classifier, in the order of its logits; null: as config.json has them
    classes: list[str] | None = setting(None, in_memory=True)

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that can change results.

        `index` is the number of a model in a series of models that differ in their seeds. It
        belongs to such a series if the number of its models, `members`, is given, or if the name,
        hub id or path of the model contains this number. (A file of settings composes them, as
        "feather-bert-${.index}"; here they already have the number.) Otherwise `index` changes
        nothing.
        """
        # The index must be a number by itself, as in feather_berts_3, and not the 3 of gelu-3l.
        number_alone = re.compile(rf"(?<![A-Za-z0-9]){self.index}(?![A-Za-z0-9])")
        names = (self.name, self.hub_id, self.path)
        is_in_name = any(number_alone.search(name) for name in names if name is not None)
        read = super().settings_read()
        if self.members or is_in_name:
            return read
        return read - {"index"}

    def check_family(self, family: str, predicts: str) -> None:
        """Refuse settings of this model that have no effect in its family of architectures.

        Args:
            family: The name of the family.
            predicts: What its models predict, such as "class".

        Raises:
            ConfigError: `classes`, the names of classes, is given for a model that does not
                predict classes.
        """
        super().check_family(family, predicts)
        if self.classes is not None and predicts != "class":
            raise ConfigError(
                f"model.classes={self.classes} has no effect for {self.called}, a {family}; "
                "leave it out"
            )

    def classes_of(self, stated: Sequence[str]) -> list[str]:
        """Return the names of a classifier's classes, in the order of its logits.

        They are the names in the checkpoint's config.json. If the setting `classes` is given, its
        names replace them. It may rename the classes, but not give the same names in a different
        order, which would contradict config.json.

        Args:
            stated: The names in config.json.

        Raises:
            ModelError: `classes` has a different number of names, or the names of config.json in
                a different order.
        """
        classes_in_files = super().classes_of(stated)
        if self.classes is None:
            return classes_in_files
        has_same_names = sorted(self.classes) == sorted(classes_in_files)
        is_reordered = has_same_names and self.classes != classes_in_files
        if is_reordered or len(self.classes) != len(classes_in_files):
            raise ModelError(
                f"{self.called}: model.classes={self.classes}, but its config.json says "
                f"{classes_in_files}; leave it out"
            )
        return self.classes


@dataclass
class PairsConfig(Checked, part="pairs"):
    """Pairs of a premise and a hypothesis: to fit on, to report on, and a challenge."""

    # templates: made offline | hub: MNLI and HANS | files: MNLI and HANS from files
    source: Literal["templates", "hub", "files"] = "templates"
    # source=files: MNLI to fine-tune on, .jsonl .tsv .txt .parquet
    fit: FilePath | None = setting(None, in_key=False)
    # source=files: MNLI to report on
    report: FilePath | None = setting(None, in_key=False)
    # source=files: HANS
    challenge: FilePath | None = setting(None, in_key=False)
    # pairs to fine-tune on; null: all
    fit_pairs: int | None = setting(4000, least=1, most=COUNTS)
    # held-out pairs of the same distribution; null: all
    report_pairs: int | None = setting(1000, least=1, most=COUNTS)
    # pairs of HANS, or of templates like HANS; null: all
    challenge_pairs: int | None = setting(6000, least=1, most=COUNTS)
    # the heuristic of the challenge pairs that are reported on; null: all
    heuristic: str | None = "lexical_overlap"
    # the class of the challenge pairs that are reported on; null: both
    label: str | None = "non-entailment"
    # source=templates: share of counterexamples among the overlapping pairs to fit on
    counterexamples: float = setting(0.02, least=0, most=1)
    # source=templates: share of pairs to fit on that are made like the lexical-overlap challenge
    lexical: float = setting(0.0, least=0, most=1)
    # seed of the templates, and of the sample of a set
    seed: int = setting(0, least=0, most=SEEDS)

    def __post_init__(self) -> None:
        """Refuse None as a number of pairs if pairs are generated from templates.

        For data that is read, None stands for all pairs. Templates could generate any number.
        """
        super().__post_init__()
        counts = (self.fit_pairs, self.report_pairs, self.challenge_pairs)
        if self.source == "templates" and None in counts:
            raise ConfigError(
                "pairs.fit_pairs, .report_pairs and .challenge_pairs must be numbers: "
                "templates can make any number of pairs"
            )

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that apply to this source of pairs of sentences.

        Paths (`fit`, `report` and `challenge`) apply if pairs are read from files. Shares of
        special pairs apply if pairs are generated from templates.
        """
        read = super().settings_read()
        if self.source != "files":
            read -= {"fit", "report", "challenge"}
        if self.source != "templates":
            read -= {"counterexamples", "lexical"}
        return read


@dataclass
class PopulationConfig(Checked, part="population"):
    """Classifiers of one architecture, grouped by number, by parent, or by accuracy."""

    usual_option: ClassVar[str] = "planted"
    elsewhere: ClassVar[tuple[str, ...]] = ("base", "members", "parents")

    # what results call it; null: planted
    name: str = setting(None, by_recipe=True, not_in_key_as="bert-mini")
    # the model that task=nli fine-tunes `size` times, where the store lacks these jobs
    base: str | None = None
    # or the model that the numbers of members belong to; local: members are folders
    members: str | None = None
    # how many fine-tunings of base there are, where there are no parents
    size: int | None = setting(None, least=2, most=10**5)
    # members of each group: of a parent, or the best and the worst on the challenge
    per_group: int = setting(6, least=1, most=10**5)
    # numbers of members, or folders: one group
    generalizing: Group | None = None
    # numbers of members, or folders: the other group
    heuristic: Group | None = None
    # {group: [words of task=nli]}: how each parent is made from base; members are its children
    parents: dict[str, list[str]] | None = None
    # words of task=nli that all parents share
    parent_options: list[str] = field(default_factory=list)
    # words of task=nli for each member's own fine-tuning
    options: list[str] = field(default_factory=list)
    # two of the groups, whose parents differ in nothing but the seed
    null: list[str] | None = None
    # numbers of members that a paper found to be a cluster, against all others
    cluster: list[int | str] | None = None

    def __post_init__(self) -> None:
        """Refuse settings that do not define at least two groups of at least two classifiers each.

        A population is of one of three kinds, each with settings of its own:

        - Published classifiers (`members`): the settings `generalizing` and `heuristic` list two
          groups of them, of classifiers that follow the rule and of those that use a shortcut.
          `setting(...)` has refused shorter lists already.
        - Children of `parents`: each parent has a group of classifiers, see `_check_parents`.
        - Classifiers that are fine-tuned from `base`: the groups are the `per_group` most accurate
          and the `per_group` least accurate of `size` classifiers.

        A configuration of no kind, for which nothing is set yet, is not checked. If settings of
        several kinds are set, parents are checked and `base` is not.

        Raises:
            ConfigError: A group of published classifiers is not listed, there are too few groups,
                or groups are too small or overlap.
        """
        super().__post_init__()
        if self.members and not (self.generalizing and self.heuristic):
            raise ConfigError(
                f"population.generalizing= and .heuristic= must name models of {self.members}"
            )
        if self.parents is not None:
            self._check_parents(self.parents)
        elif self.base and not 2 <= self.per_group <= (self.size or 0) // 2:
            raise ConfigError(
                f"population.per_group={self.per_group} must be from 2 to half of size={self.size}"
            )

    def _check_parents(self, parents: dict[str, list[str]]) -> None:
        """Check the settings of a population whose groups have parents.

        A parent is fine-tuned from the base model, and the classifiers of its group from the
        parent.

        Args:
            parents: For each group, the options with which its parent is fine-tuned.

        Raises:
            ConfigError: There are fewer than two groups, or fewer than two classifiers in a group;
                there is no base model; or `null` is given (two groups whose parents differ in
                nothing but their seed) and does not name two of at least three groups.
        """
        if self.null is not None:
            names_two_groups = len(self.null) == 2 and len(set(self.null)) == 2
            has_third_group = set(self.null) < set(parents)  # a proper subset
            if not (names_two_groups and has_third_group):
                raise ConfigError(
                    f"population.null={self.null} must name two of at least three groups: "
                    f"{', '.join(parents)}"
                )
        if len(parents) < 2 or not self.base or self.per_group < 2:
            raise ConfigError(
                f"population.parents={parents} needs two groups, .base, and .per_group from 2"
            )

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that apply to this kind of population of classifiers.

        There are three kinds: published classifiers, classifiers that are fine-tuned from parents
        (models that were fine-tuned themselves), and classifiers that are fine-tuned from a
        pretrained model, the base.
        """
        names = super().settings_read()
        if self.members:  # published: nothing is fine-tuned, and the groups are listed
            return names - {"size", "per_group", "parents", "parent_options", "options", "null"}
        if self.parents:  # each parent has `per_group` classifiers, which decides their number
            return names - {"size"}
        return names - {"parent_options", "null"}  # these are about parents


@dataclass
class NLIConfig(Checked, part="nli"):
    """How task=nli fine-tunes a classifier: AdamW, warm-up and cosine."""

    # number of the member; it decides the initial weights of the head and the order of the pairs
    index: int = setting(0, least=0, most=SEEDS)
    # how often the training sees each pair
    epochs: int = setting(3, by_recipe=True, least=1, most=10**4)
    # pairs that a step reads
    pairs_per_step: int = setting(32, least=1, most=10**6)
    # peak learning rate
    lr: float = setting(2e-5, by_recipe=True, above=0)
    # decoupled weight decay of all weights
    weight_decay: float = setting(0.01, least=0)
    # share of the steps in which the learning rate rises
    warmup: float = setting(0.1, least=0, below=1)
    # largest norm of the gradient; 0: no clipping
    clip: float = setting(1.0, least=0)
    # tokens of a pair: at least one of each text, and three special tokens
    context: int = setting(128, by_recipe=True, least=5, most=CONTEXT)
    # peak learning rate of the new head; null: lr
    head_lr: float | None = setting(None, above=0)
    # standard deviation of the initial weights of the head; null: the model's initializer_range
    head_std: float | None = setting(None, above=0)
    # blocks that are not trained, with the embeddings; 0: all is trained
    freeze: int = setting(0, least=0, most=10**4)
    # the first block whose weights are drawn anew, with all later ones; null: none
    redraw: int | None = setting(None, least=0, most=10**4)

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        """Return the settings for a mini (a small bundled model) that differ from those of a BERT.

        They apply with `scale=mini` to any model, with `scale=paper` to none, and with
        `scale=auto` to a model that is a mini. A mini starts from little training and needs a
        larger learning rate and more epochs, which would ruin a pretrained BERT.
        """
        has_settings_of_mini = job.is_mini
        if job.scale == "auto":
            has_settings_of_mini = job.model.mini
        if has_settings_of_mini:
            return {"lr": 5e-4, "epochs": 4, "context": 64}
        return {}


@dataclass
class NLIJob(TrainConfig):
    """All that `task=nli` needs to know."""

    nli: NLIConfig = field(default_factory=NLIConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)


@dataclass
class PopulationMeasureConfig(MeasureConfig):
    """The settings of the comparison of a population."""

    kind: str = "population"
    # the pairs that stitches and CKA read
    side: Literal["report", "challenge"] = "report"
    # tokens that CKA compares; cls: the first one, which the classifier reads
    tokens: Literal["all", "cls"] = setting("all", by_recipe=True)
    # how many pairs, drawn at random, CKA reads (about 1000 in brown2023); null: all
    cka_pairs: int | None = setting(None, least=1, most=COUNTS)
    # tokens of a batch of CKA; with tokens=cls at most a quarter of the pairs: four batches
    tokens_per_batch: int = setting(1024, least=1, most=TOKENS_AT_ONCE)
    # pairs that run at once
    batch: int = setting(64, least=1, most=10**5)
    # sources that run through a target's blocks together
    at_once: int = setting(4, least=1, most=10**5)


@dataclass
class PopulationJob(AnalyzeConfig):
    """All that `measure=population` needs to know."""

    pairs: PairsConfig = field(default_factory=PairsConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
