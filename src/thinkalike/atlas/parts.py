"""The jobs on which an atlas rests: those of each measure of layer pairs, and the stitches, of all pairs of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from thinkalike.config import AnalyzeConfig, MeasureConfig, TrainConfig, compose_job, jobs_of, measure_schema
from thinkalike.models import told_apart

STITCH = ("task=stitch", "layers=all", "stitch=affine", "stitch.steps=50", "stitch.warmup=5", "stitch.floor=false")
FORWARD, BACK = "penalty", "penalty_back"  # of stitches of a pair's source into its target, and of the other way
SHARED = ("model", "model@target", "target", "data", "seed", "store", "force", "wait", "scale", "recipe")


class Part(NamedTuple):
    """A job of an atlas.

    Attributes:
        measure: the kind of its measure, or `FORWARD` or `BACK` of stitches.
        source, target: what the atlas calls the two models of the pair, also where the job stitches them backwards.
    """

    measure: str
    source: str
    target: str
    config: AnalyzeConfig | TrainConfig


def parts_of(config: AnalyzeConfig) -> list[Part]:
    """Return the jobs of an atlas, by measure and then by pair; the configuration is one of `measure=atlas`.

    Raises:
        ConfigError: the models are no list of two or more, or a setting does not go with a measure; see `jobs_of`.
    """
    measure: Any = config.measure
    settings = [settings_for(measure, kind) for kind in measure.measures]
    pairs = _pairs(config, config.models)
    names = names_of(pairs)
    parts = [
        Part(each.kind, *name, replace(pair, measure=each))
        for each in settings
        for name, pair in zip(names, pairs, strict=True)
    ]
    if measure.stitches:
        # the pairs of the reversed list are the same ones, last first, each the other way round
        ways = {FORWARD: pairs, BACK: _pairs(config, config.models[::-1])[::-1]}
        for kind, jobs in ways.items():
            parts += [Part(kind, *name, _stitch(job)) for name, job in zip(names, jobs, strict=True)]
    return parts


def settings_for(measure: Any, kind: str) -> MeasureConfig:
    """Return the settings of one measure: those of the atlas that it has.

    Raises:
        ConfigError: one of them does not go with the measure.
    """
    schema = measure_schema(kind)
    known = {item.name for item in fields(schema)} - {"kind"}
    return schema(**{item.name: getattr(measure, item.name) for item in fields(measure) if item.name in known})


def names_of(pairs: Sequence[AnalyzeConfig]) -> list[tuple[str, str]]:
    """Return what the two models of each pair are called, so that no two models of all pairs share a name."""
    models = list({repr(model): model for pair in pairs for model in (pair.model, pair.target)}.values())
    names = dict(zip(map(repr, models), told_apart(models), strict=True))
    return [(names[repr(pair.model)], names[repr(pair.target)]) for pair in pairs]


def _pairs(config: AnalyzeConfig, models: Any) -> list[AnalyzeConfig]:
    """Return a job of one measure for each pair of models."""
    words = [word for word in config.chosen if not word.startswith("measure")]
    return jobs_of(replace(config, models=models, chosen=[*words, "measure=cka"]), "pairs")


def _stitch(pair: AnalyzeConfig) -> Any:
    """Return the job that stitches the source of a pair into its target at all layer pairs, by a short recipe."""
    words = [word for word in pair.chosen if word.lstrip("+~").partition("=")[0].partition(".")[0] in SHARED]
    threads = [f"threads={pair.threads}"] if pair.threads else []
    return compose_job("train", [*words, *STITCH, "logger=none", *threads])
