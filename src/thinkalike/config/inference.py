"""What can be configured of natural language inference: pairs, the training of classifiers on them, populations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from thinkalike.errors import ConfigError, one_of


# ruff: noqa: UP045
@dataclass
class PairsConfig:
    """Pairs of a premise and a hypothesis: to fit on, to report on, and a challenge."""

    source: str = "templates"  # templates: made offline | hub: MNLI and HANS | files
    fit: Optional[str] = None  # source=files: MNLI to fine-tune on, .jsonl .tsv .txt .parquet
    report: Optional[str] = None  # source=files: MNLI that is reported on
    challenge: Optional[str] = None  # source=files: HANS
    fit_pairs: Optional[int] = 4000  # how many of each; null: all that there are
    report_pairs: Optional[int] = 1000
    challenge_pairs: Optional[int] = 6000
    heuristic: Optional[str] = "lexical_overlap"  # which part of the challenge is reported on; null: all
    label: Optional[str] = "non-entailment"
    counterexamples: float = 0.02  # source=templates: share of training pairs against the heuristics
    truncate: bool = True  # cut pairs that are longer than the model can take; false refuses them
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("pairs.source", self.source, ("templates", "hub", "files"))
        for key in ("fit_pairs", "report_pairs", "challenge_pairs"):
            value = getattr(self, key)
            if value is not None and value <= 0:
                raise ConfigError(f"pairs.{key}={value} must be positive")
            if value is None and self.source == "templates":
                raise ConfigError(f"pairs.{key} must be a number: templates give as many pairs as are asked for")


@dataclass
class NLIConfig:
    """How task=nli fine-tunes a classifier: AdamW, warm-up and cosine."""

    index: int = 0  # which of a population; it decides the head's initial weights and the order of the pairs
    epochs: int = 3
    pairs_per_step: int = 32
    lr: float = 2e-5
    weight_decay: float = 0.01
    warmup: float = 0.1  # share of the steps
    clip: float = 1.0
    context: int = 128  # tokens of a pair

    def __post_init__(self) -> None:
        for key in ("epochs", "pairs_per_step", "lr", "context"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"nli.{key}={getattr(self, key)} must be positive")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"nli.warmup={self.warmup} must lie in [0, 1)")


@dataclass
class PopulationConfig:
    """Classifiers of one architecture, in two groups."""

    name: str = "bert-mini"
    base: Optional[str] = None  # the model that task=nli fine-tunes `size` times, where they are not there yet
    members: Optional[str] = None  # or the model of which they are numbers; local: they are folders
    size: int = 20
    per_group: int = 6  # where groups are not named: the most and the least accurate on the challenge
    generalizing: Optional[list[Any]] = None
    heuristic: Optional[list[Any]] = None
    published: Optional[dict[str, list[float]]] = None  # accuracies of the members by number: heldout, challenge
    cluster: Optional[list[Any]] = None  # a published grouping: these against all others

    def __post_init__(self) -> None:
        if self.published and not (self.generalizing or self.heuristic):
            accuracies = self.published["challenge"]
            ranked = sorted(range(len(accuracies)), key=lambda number: -accuracies[number])
            self.generalizing, self.heuristic = ranked[: self.per_group], ranked[: -self.per_group - 1 : -1]
        for key in ("generalizing", "heuristic"):
            group = getattr(self, key)
            if self.members and (group is None or len(group) < 2):
                raise ConfigError(f"population.{key}={group} needs at least two models of {self.members}")
        if self.base and not 2 <= self.per_group <= self.size // 2:
            raise ConfigError(
                f"population.per_group={self.per_group} must lie between 2 and half of population.size={self.size}"
            )
