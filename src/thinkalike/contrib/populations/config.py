"""The settings of classifiers of pairs of sentences: what they read, how they are fine-tuned, populations of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from thinkalike.config import AnalyzeConfig, ModelConfig, RecipeJob, SettingValues, TrainConfig, setting
from thinkalike.config.parts import CONTEXT, COUNTS
from thinkalike.config.schema import SEEDS, Checked, FilePath
from thinkalike.errors import ConfigError, ModelError

Number = Annotated[int, Field(ge=0, strict=True)]  # of a model of a population
Folder = Annotated[str, Field(strict=True)]  # or its checkpoint
Group = Annotated[list[Number | Folder], Field(min_length=2)]


@dataclass
class NumberedModel(ModelConfig):
    """A model that may be one of a numbered population, and a classifier whose files may not name its classes."""

    index: int = setting(0, least=0, most=SEEDS)  # which of a numbered population
    members: int | None = setting(None, least=1, most=SEEDS, in_key=False)  # how many it has, numbered from 0
    # of a classifier, in the order of its logits; null: as config.json has them
    classes: list[str] | None = setting(None, in_memory=True)

    def settings_read(self) -> frozenset[str]:
        # as a number of its own, as in feather_berts_3, and not as the 3 of gelu-3l
        number = re.compile(rf"(?<![A-Za-z0-9]){self.index}(?![A-Za-z0-9])")
        names = (self.name, self.hub_id, self.path)
        is_in_name = any(number.search(name) for name in names if name is not None)
        read = super().settings_read()
        return read if self.members or is_in_name else read - {"index"}

    def check_family(self, family: str, predicts: str) -> None:
        super().check_family(family, predicts)
        if self.classes is not None and predicts != "class":
            raise ConfigError(f"model.classes={self.classes} has no effect for {self.called}, a {family}; leave it out")

    def classes_of(self, stated: Sequence[str]) -> list[str]:
        in_files = super().classes_of(stated)
        if self.classes is None:
            return in_files
        is_other_order = sorted(self.classes) == sorted(in_files) and self.classes != in_files
        if is_other_order or len(self.classes) != len(in_files):
            raise ModelError(
                f"{self.called}: model.classes={self.classes}, but its config.json says {in_files}; leave it out"
            )
        return self.classes


@dataclass
class PairsConfig(Checked, part="pairs"):
    """Pairs of a premise and a hypothesis: to fit on, to report on, and a challenge."""

    source: Literal["templates", "hub", "files"] = "templates"  # templates: made offline | hub: MNLI and HANS
    # source=files: MNLI to fine-tune on, .jsonl .tsv .txt .parquet
    fit: FilePath | None = setting(None, in_key=False)
    report: FilePath | None = setting(None, in_key=False)  # source=files: MNLI that is reported on
    challenge: FilePath | None = setting(None, in_key=False)  # source=files: HANS
    # how many of each; null: all that there are
    fit_pairs: int | None = setting(4000, least=1, most=COUNTS)
    report_pairs: int | None = setting(1000, least=1, most=COUNTS)  # held out, in distribution
    challenge_pairs: int | None = setting(6000, least=1, most=COUNTS)  # of HANS, or of its kind
    heuristic: str | None = "lexical_overlap"  # which part of the challenge is reported on; null: all
    label: str | None = "non-entailment"  # the class of these pairs; null: both
    counterexamples: float = setting(0.02, least=0, most=1)  # source=templates: share of fit pairs
    lexical: float = setting(0.0, least=0, most=1)  # source=templates: share of fit pairs with lexical overlap
    # of templates, and of which pairs of a set are taken
    seed: int = setting(0, least=0, most=SEEDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == "templates" and None in (self.fit_pairs, self.report_pairs, self.challenge_pairs):
            raise ConfigError("pairs.fit_pairs, .report_pairs and .challenge_pairs must be numbers: templates are made")

    def settings_read(self) -> frozenset[str]:
        read = super().settings_read()
        if self.source != "files":
            read -= {"fit", "report", "challenge"}
        return read if self.source == "templates" else read - {"counterexamples", "lexical"}


@dataclass
class PopulationConfig(Checked, part="population"):
    """Classifiers of one architecture, in groups: those of a name each, of a parent each, or the best and the worst."""

    usual_option: ClassVar[str] = "planted"
    elsewhere: ClassVar[tuple[str, ...]] = ("base", "members", "parents")

    # what results call it; null: planted
    name: str = setting(None, by_recipe=True, not_in_key_as="bert-mini")
    base: str | None = None  # the model that task=nli fine-tunes `size` times, where they are not there yet
    members: str | None = None  # or the model of which they are numbers; local: they are folders
    size: int | None = setting(None, least=2, most=10**5)  # of fine-tunings of base without parents
    # where groups are not named: best and worst on the challenge
    per_group: int = setting(6, least=1, most=10**5)
    generalizing: Group | None = None  # numbers of members, or folders: one group
    heuristic: Group | None = None  # the other group
    parents: dict[str, list[str]] | None = None  # {group: [words of task=nli]} of base; members are forks
    parent_options: list[str] = field(default_factory=list)  # words of task=nli that all parents share
    options: list[str] = field(default_factory=list)  # words of task=nli for each member's own fine-tuning
    null: list[str] | None = None  # two of the groups, whose parents differ in nothing but the seed
    cluster: list[Any] | None = None  # a published grouping: these against all others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members and not (self.generalizing and self.heuristic):
            raise ConfigError(f"population.generalizing= and .heuristic= must name models of {self.members}")
        if self.parents is not None:
            if self.null is not None and (len(self.null) != 2 or not {*self.null} < {*self.parents}):
                raise ConfigError(
                    f"population.null={self.null} must name two of more groups: {', '.join(self.parents)}"
                )
            if len(self.parents) < 2 or not self.base or self.per_group < 2:
                raise ConfigError(f"population.parents={self.parents} needs two groups, .base, and .per_group from 2")
        elif self.base and not 2 <= self.per_group <= (self.size or 0) // 2:
            raise ConfigError(f"population.per_group={self.per_group} must be from 2 to half of size={self.size}")

    def settings_read(self) -> frozenset[str]:
        read = super().settings_read()
        if self.members:
            return read - {"size", "per_group", "parents", "parent_options", "options", "null"}
        return read - {"size"} if self.parents else read - {"parent_options", "null"}


@dataclass
class NLIConfig(Checked, part="nli"):
    """How task=nli fine-tunes a classifier: AdamW, warm-up and cosine."""

    index: int = setting(0, least=0, most=SEEDS)  # of a population; it decides head and order
    epochs: int = setting(3, by_recipe=True, least=1, most=10**4)  # how often it sees each pair
    pairs_per_step: int = setting(32, least=1, most=10**6)  # pairs that a step reads
    lr: float = setting(2e-5, by_recipe=True, above=0)  # peak
    weight_decay: float = setting(0.01, least=0)  # decoupled, of all weights
    warmup: float = setting(0.1, least=0, below=1)  # share of the steps
    clip: float = setting(1.0, least=0)  # gradient norm; 0: none
    # tokens of a pair: one of each text, and three marks
    context: int = setting(128, by_recipe=True, least=5, most=CONTEXT)
    head_lr: float | None = setting(None, above=0)  # of the new classes; null: lr
    # of their weights; null: the model's initializer_range
    head_std: float | None = setting(None, above=0)
    freeze: int = setting(0, least=0, most=10**4)  # blocks that are not trained, with the embeddings; 0: all is trained
    # the first block drawn anew, with all later ones
    redraw: int | None = setting(None, least=0, most=10**4)

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        """Return what suits a mini, whatever the machine: its rate ruins a pretrained BERT."""
        is_small = job.model.mini if job.scale == "auto" else job.is_mini
        return {"lr": 5e-4, "epochs": 4, "context": 64} if is_small else {}


@dataclass
class NLIJob(TrainConfig):
    """All that `task=nli` needs to know."""

    nli: NLIConfig = field(default_factory=NLIConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)


@dataclass
class PopulationJob(AnalyzeConfig):
    """All that `measure=population` needs to know."""

    pairs: PairsConfig = field(default_factory=PairsConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
