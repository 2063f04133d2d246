"""measure=mlem: which features explain the distances of stimuli in each layer (Salle et al. 2024)."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite, nan
from pathlib import Path
from typing import Any, ClassVar, Literal, Optional

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, setting
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import ConfigError, DataError, nearest
from thinkalike.instruments.of_stimuli import (
    DistanceConfig,
    OfStimuli,
    rows_of_sides,
    states_of_sides,
    stimuli_facts,
    warn_of_words,
)
from thinkalike.job import Outcome, Work
from thinkalike.measures.distances.comparators import weighted_tau
from thinkalike.measures.estimates import interval_around
from thinkalike.measures.kinds import NUMBER_KINDS
from thinkalike.measures.mlem.encoding_model import FEWEST_PER_FOLD, MLEM
from thinkalike.measures.mlem.importance import Importance, feature_importance, fewest_groups, fold_interval
from thinkalike.measures.mlem.split_half import split_half_reference
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.screen import Table, few, number_column, show_table, show_text, span
from thinkalike.states.stimuli import StimulusStates, numbered
from thinkalike.store import Headline, Result
from thinkalike.tables import matrix_rows, repeated_rows

log = logging.getLogger(__name__)

P_VALUES = ("p", "p_of_largest")
CELLS = ("reference", "reference_of_words")  # split-half, of the joint cells of all features, and of words
GIVEN_WORD = ("given_word", "given_word_low", "given_word_high")  # importance beyond the identity of words
SHARE = "share"  # of the first reference that a score is
FEATURES, ROWS = 5, 12  # columns and rows on the screen


# ruff: noqa: UP045
@dataclass
class MLEMConfig(DistanceConfig):
    """The settings of a metric-learning encoding model of every layer, and of the importance of the features in it."""

    kind: str = "mlem"
    weights: Literal["diagonal", "full"] = "diagonal"  # full: with an interaction of every two features
    alphas: list[float] = setting(lambda: [10.0**power for power in range(-4, 5)], least=0)  # ridges
    # indicator, as salle2024 has it | scaled, of ordered features | levels
    difference: Literal["indicator", "scaled", "levels"] = "indicator"
    missing: Literal["own_level", "ignore", "drop", "error"] = "own_level"  # NaN is a value of its own
    scale: Literal["auto", "mean", "minmax", "none"] = "auto"  # of weights, by squared distances; recipe=paper: minmax
    folds: int = setting(5, least=2, most=10**4)  # outer and inner
    together: Literal["sentence", "stimulus"] = "sentence"  # what a fold keeps together
    permutations: int = setting(5, least=1, most=10**6)  # of each feature, on each fold
    given: Optional[str] = None  # a feature within whose levels the others are permuted
    interactions: list[list[str]] = field(default_factory=list)  # pairs of features that are also permuted together
    null: int = setting(0, least=0, most=10**6)  # how often each feature moves between sentences, for p-values
    # divisions of the stimuli for split-half references; 0: none
    references: int = setting(3, least=0, most=10**4)

    def __post_init__(self) -> None:
        super().__post_init__()
        for pair in self.interactions:
            if len(set(pair)) != 2 or len(pair) != 2:
                raise ConfigError(f"measure.interactions holds pairs of two features, not {pair}")


class FeatureProfiles(
    OfStimuli, kind="mlem", version=8, reads=("model", "target", "layers", "measure", "stimuli", "recipe", "seed")
):
    """Finds the feature profiles of all layers of `model`, and of `model@target` if that is another.

    Beside them stand held-out scores and split-half references in scores.csv, the likeness of layers in similarity.csv,
    pair effects in interactions.csv, and weights of pairs of levels in levels.csv.
    """

    of_models: ClassVar[str] = "each"
    smallest: ClassVar[Mapping[str, Any]] = {
        "measure.folds": 2,
        "measure.permutations": 1,
        "measure.references": 0,
        "stimuli.sentences": 40,
    }

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        inputs = super().inputs(config)
        measure = config.measure_as(MLEMConfig)
        stimuli = inputs["stimuli"]
        for name in [measure.given, *itertools.chain.from_iterable(measure.interactions)]:
            if name is not None and name not in stimuli.names:
                raise DataError(f"{stimuli.source} has no feature {name}; {nearest(name, stimuli.names)}")
        _check_differences(measure, stimuli, is_folded=config.recipe != "paper")  # which divides pairs
        alone = len(stimuli.groups.unique()) == len(stimuli)
        if measure.null and not alone and _groups(config, stimuli) is None:
            raise ConfigError("measure.null moves whole sentences: it needs measure.together=sentence, recipe=stimuli")
        return inputs

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure = config.measure_as(MLEMConfig)
        with work.phase("states"):
            (stimuli, sides), every = states_of_sides(config, work.input("stimuli", Stimuli))
        warn_of_words(stimuli)
        model, importance = fit_profiles(config, stimuli, sides)
        rows = rows_of_sides(sides)
        scores = _share(_scores(model, importance, rows).assign(**_references(config, stimuli, sides)))
        tables = {"scores": scores, "similarity": _similarity(importance, rows)}
        if measure.interactions:
            columns = dict(zip(("effect", "low", "high"), importance.pair_effects(), strict=True))
            named = [" x ".join(pair) for pair in measure.interactions]
            tables["interactions"] = repeated_rows(rows, "features", named, **columns)
        tables["levels"] = level_table(model, stimuli, rows)
        profiles = _profiles(model, importance, stimuli, rows)
        profiles = profiles.assign(**_given_words(config, stimuli, sides, len(rows)))
        if every:
            once = replace(config, measure=replace(measure, permutations=1, null=0, interactions=[]))
            _, found = fit_profiles(once, *every)
            profiles["with_massive"] = found.profile().value.flatten().numpy()
            tables["scores"] = scores = scores.assign(with_massive=found.score().value.numpy())
        tables |= self.beside(config, stimuli, sides, profiles, scores)
        arrays = {"weights": model.weights_, "correlation": model.correlation_}
        arrays |= {"scores": importance.scores, "importances": importance.by_fold()}
        return Outcome(
            profiles,
            {"mean_score": float(scores["score"].mean()), "stimuli": float(len(stimuli))},
            {name: values.numpy() for name, values in arrays.items()},
            {name: table for name, table in tables.items() if len(table)},
            models=[side.origin for side in sides],
            facts=stimuli_facts(stimuli, sides[: len(config.subjects)]),
            blank=(
                "alpha",
                SHARE,
                *(f"{name}{end}" for name in CELLS for end in ("", "_low", "_high")),
                *P_VALUES,
                *GIVEN_WORD,
            ),
        )

    def compare(self, config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]) -> None:
        fit_profiles(config, stimuli, sides)
        _references(config, stimuli, sides)
        _given_words(config, stimuli, sides, sum(len(side.layers) for side in sides))

    def beside(
        self,
        config: AnalyzeConfig,
        stimuli: Stimuli,
        sides: Sequence[StimulusStates],
        profiles: pd.DataFrame,
        scores: pd.DataFrame,
    ) -> dict[str, pd.DataFrame]:
        """Return further tables by name, from the profiles and the scores of all sides."""
        return {}

    def shown(self, result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the profiles and the scores that the screen and the figure show."""
        return result.table, result.tables["scores"]

    def draw(self, result: Result, folder: Path) -> None:
        about = f"{result.provenance['stimuli']['count']:,} stimuli"
        figures.profiles(*self.shown(result), folder, about=about)
        if "similarity" in result.tables:
            figures.similarity({"weighted τ of profiles": result.tables["similarity"]}, folder, about=about)

    def headlines(self, result: Result) -> list[Headline]:
        """Return the held-out ρ, as the mean over layers and of the best layer, with intervals over folds."""
        scores = result.tables["scores"]
        mean = fold_interval(torch.from_numpy(result.arrays["scores"]).mean(0))
        best = scores.iloc[int(scores["score"].argmax())]
        ends = mean if isfinite(best["low"]) else interval_around(mean.value, inf)
        best_score = Headline.with_ends("best_score", best["score"], best["low"], best["high"])
        return [Headline.with_ends("mean_score", *map(float, ends)), best_score]

    def show(self, result: Result) -> None:
        stimuli = result.provenance["stimuli"]
        show_text(f"{stimuli['count']} stimuli of {stimuli['source']}")
        profiles, scores = self.shown(result)
        sides = list(scores.groupby("model", sort=False))
        for model, own in sides:
            profile = profiles[profiles["model"] == model].pivot(index="layer", columns="feature", values="importance")
            shown = profile.mean().nlargest(FEATURES).index
            rows = own.iloc[few(len(own), max(ROWS // len(sides), 2))]
            columns = [number_column("layer", rows["layer"]), number_column("held-out ρ", rows["score"], ".3f")]
            columns += [number_column(str(name), profile.loc[rows["layer"], name], ".3f") for name in shown]
            show_table(Table(f"{model}: Spearman's ρ, and what it loses without a feature", columns))
            show_text(_in_words(own, profile))
            beyond_words = _beyond_words(profiles[profiles["model"] == model])
            if beyond_words:
                show_text(beyond_words)
        for sentence in stimuli.get("confounded_with_words", ()):
            show_text(f"{sentence}.")


def _check_differences(measure: MLEMConfig, stimuli: Stimuli, *, is_folded: bool) -> None:
    """Refuse stimuli too few for folds, and a feature that differs in all pairs alike: it has no weight."""
    fewest = FEWEST_PER_FOLD * measure.folds
    if len(measure.alphas) > 1:  # chosen by folds of the stimuli that are not held out
        fewest = ceil(fewest * measure.folds / (measure.folds - 1))
    if is_folded and len(stimuli) < fewest:
        raise DataError(f"{stimuli.source} has {len(stimuli)} stimuli, and measure.folds={measure.folds} needs at "
                        f"least {fewest}; give more stimuli, or choose fewer folds")  # fmt: skip
    by_size = ("ordinal", *NUMBER_KINDS) if measure.difference == "scaled" else ("continuous",)
    for name, column in stimuli.features.items():
        compared = column.dropna() if measure.missing in ("ignore", "drop") else column
        if stimuli.kinds[str(name)] in by_size or compared.duplicated().any():
            continue
        is_number = stimuli.kinds[str(name)] in NUMBER_KINDS
        remedy = f"set kinds.{name}=continuous to compare its sizes, or " if is_number else ""
        raise DataError(f"{stimuli.source}: {name} has another value in every row, so that all pairs differ alike and "
                        f"it explains no distance; {remedy}leave it out of features")  # fmt: skip


def _in_words(scores: pd.DataFrame, profile: pd.DataFrame) -> str:
    """Return which layer the features explain best, what it is measured against, and what matters most."""
    best: Any = scores.iloc[int(scores["score"].argmax())]
    said = f"Features explain layer {best['layer']} best, ρ {span(best['score'], best['low'], best['high'])}"
    if isfinite(best.get(SHARE, nan)):
        said += f", {best[SHARE]:.0%} of the reference"
    if isfinite(best.get("lower", nan)):
        said += f", with a noise ceiling of {best['lower']:.3f} to {best['upper']:.3f}"
    feature = str(profile.max().idxmax())
    return f"{said}. {feature} matters most, {profile[feature].max():.3f} at layer {profile[feature].idxmax()}."


def _beyond_words(profiles: pd.DataFrame) -> str:
    """Return what is left of the features that go with words, given the word, in the layer where that is most."""
    if GIVEN_WORD[0] not in profiles:
        return ""
    sentences = []
    for feature, rows in profiles.dropna(subset=GIVEN_WORD[0]).groupby("feature", sort=False):
        most: Any = rows.iloc[int(rows[GIVEN_WORD[0]].argmax())]
        before, left = most["importance"], span(*(most[name] for name in GIVEN_WORD))
        sentences.append(f"Given the word, {feature} has importance {left} of {before:.3f} at layer {most['layer']}.")
    return " ".join(sentences)


def fit_profiles(config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]) -> tuple[MLEM, Importance]:
    """Return an encoding model of all layers of all sides, and what held-out scores lose without each feature."""
    measure = config.measure_as(MLEMConfig)
    names, groups = stimuli.names, _groups(config, stimuli)
    shared = ("weights", "distance", "difference", "missing", "scale", "folds")
    settings = {key: getattr(measure, key) for key in shared}
    recipe, kinds = "paper" if config.recipe == "paper" else "stimuli", [str(stimuli.kinds[name]) for name in names]
    model = MLEM(alpha=measure.alphas, kinds=kinds, recipe=recipe, seed=config.seed, **settings)
    features = pd.DataFrame(stimuli.codes().table.numpy(), columns=names)
    layers = [layer for side in sides for layer in side.states]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(features, layers, groups)
        for warning in caught:
            log.warning("warning: %s", warning.message)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same again on every fold
            asked = {key: getattr(measure, key) for key in ("folds", "permutations", "given", "null")}
            asked |= {"interactions": [(a, b) for a, b in measure.interactions], "groups": groups, "seed": config.seed}
            importance = feature_importance(model, features, layers, **asked)
    except ValueError as error:
        remedy = "; measure.together=stimulus lets folds divide a text" if "groups" in str(error) else ""
        raise DataError(f"{stimuli.source}: {error}{remedy}{numbered(sides, str(error))}") from error
    needed = fewest_groups(measure.folds)
    if importance.groups < needed:
        lacking = "no intervals and no p" if importance.groups < FEWEST_GROUPS else "no intervals"
        log.warning("warning: %s has fewer than %d sentences: %s", stimuli.source, needed, lacking)
    return model, importance


def _given_words(
    config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates], layers: int
) -> dict[str, np.ndarray]:
    """Return columns of the importance, given the word, of features that go with words; NaN for all others.

    The identity of words is a feature of the model beside the others, and values move between stimuli of one word. Of
    a feature that the word determines nothing is left. There are no columns if no feature goes with words, or with
    recipe=paper, which permutes pairs.
    """
    overlaps = stimuli.confounded_with_words()
    if not overlaps or config.recipe == "paper":
        return {}
    values = np.full((3, layers, len(stimuli.names)), nan)
    for overlap in overlaps:
        values[:, :, stimuli.names.index(overlap.feature)] = 0.0
    varying = [overlap.feature for overlap in overlaps if overlap.differing > 0]
    if varying:
        word = "word"
        while word in stimuli.names:
            word += "_"
        identities = pd.Categorical(pd.Series(stimuli.words).str.casefold())
        kinds = {**stimuli.kinds, word: "nominal"}
        beside = replace(stimuli, features=stimuli.features.assign(**{word: identities}), kinds=kinds)
        measure = replace(config.measure_as(MLEMConfig), given=word, null=0, interactions=[])
        _, importance = fit_profiles(replace(config, measure=measure), beside, sides)
        estimate = importance.profile()
        for feature in varying:
            place = stimuli.names.index(feature)
            values[:, :, place] = torch.stack([*estimate])[:, :, place].numpy()
    return {name: column.flatten() for name, column in zip(GIVEN_WORD, values, strict=True)}


def _groups(config: AnalyzeConfig, stimuli: Stimuli) -> Tensor | None:
    """Return what a fold keeps together: the number of each stimulus's sentence, or None."""
    apart = config.recipe == "paper" or config.measure_as(MLEMConfig).together == "stimulus"
    return None if apart else stimuli.groups


def _references(config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]) -> dict[str, Any]:
    """Return the split-half references of all features together, and of words, with intervals; nan if unknown."""
    measure = config.measure_as(MLEMConfig)
    layers, found = [layer for side in sides for layer in side.states], dict[str, Any]()
    cells = [repr(row) for row in stimuli.features.itertuples(index=False)], stimuli.words
    groups = _groups(config, stimuli)
    groups_of_stimuli = None if groups is None else groups.tolist()
    for name, each in zip(CELLS if measure.references else (), cells, strict=False):
        columns = name, f"{name}_low", f"{name}_high"
        title = name.replace("_", " ")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                ends = split_half_reference(
                    each,
                    layers,
                    measure.distance,
                    groups=groups_of_stimuli,
                    splits=measure.references,
                    seed=config.seed,
                )
            except ValueError as error:
                log.warning("warning: %s is left out: %s", title, error)
                found |= dict.fromkeys(columns, nan)
                continue
        for warning in caught:
            log.warning("warning: %s: %s", title, warning.message)
        found |= zip(columns, (part.numpy() for part in ends), strict=True)
    return found


def _profiles(model: MLEM, importance: Importance, stimuli: Stimuli, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layer and feature: importance with its interval over folds, weight, and p if it was asked."""
    weights = model.weights_ if model.weights_.dim() == 2 else model.weights_.diagonal(dim1=1, dim2=2)
    columns = dict(zip(("importance", "low", "high"), importance.profile(), strict=True)) | {"weight": weights}
    if importance.null is not None:
        columns |= zip(P_VALUES, (importance.p_values(), importance.p_of_largest()), strict=True)
    return repeated_rows(rows, "feature", stimuli.names, **columns)


def _scores(model: MLEM, importance: Importance, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layer: held-out Spearman's ρ with its interval over folds, and the α of the fit."""
    alpha = model.alpha_.where(model.alpha_.isfinite(), torch.nan)  # ∞ of levels with one weight per feature
    columns = dict(zip(("score", "low", "high"), importance.score(), strict=True)) | {"alpha": alpha}
    return rows.assign(**{name: values.numpy() for name, values in columns.items()})


def _share(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores with the share of the split-half reference that they are, where there is one above 0."""
    reference = scores.get(CELLS[0])
    return scores if reference is None else scores.assign(**{SHARE: scores["score"] / reference.where(reference > 0)})


def _similarity(importance: Importance, rows: pd.DataFrame) -> pd.DataFrame:
    """Return weighted Kendall τ of the profiles of every two layers; nothing if a profile ranks no feature."""
    try:
        return matrix_rows(rows, rows, value=weighted_tau(importance.profile().value))
    except ValueError as error:
        log.warning("warning: layers are not compared by their profiles: %s", error)
        return pd.DataFrame()


def level_table(model: MLEM, stimuli: Stimuli, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layer and pair of levels: feature, level, other, weight; of difference=levels."""
    tables, named = [], stimuli.codes().levels
    for feature, values, weights, _ in model.level_weights_:
        name = stimuli.names[feature]
        levels = ["missing" if value != value else named[name][int(value)] for value in values.tolist()]
        first, second = np.triu_indices(len(levels), 1)
        table = repeated_rows(rows, "level", [levels[a] for a in first], weight=weights[:, first, second])
        tables.append(table.assign(feature=name, other=[levels[b] for b in second] * len(rows)))
    columns = ["model", "layer", "feature", "level", "other", "weight"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame()
