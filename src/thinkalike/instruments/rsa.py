"""measure=rsa: how alike the distances of stimuli are in every two layers (Salle et al. 2024, section 4)."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, SettingValues, setting
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import ConfigError, DataError
from thinkalike.instruments import of_stimuli
from thinkalike.instruments.of_stimuli import DistanceConfig, DistanceName, OfStimuli
from thinkalike.job import Outcome, Work
from thinkalike.measures.distances.comparators import TIED, WHITENED
from thinkalike.measures.distances.crossnobis import crossnobis
from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.distances.ranks import mid_ranks
from thinkalike.measures.distances.rsa import mantel, rsa, rsa_estimate
from thinkalike.measures.estimates import Estimate, interval_around
from thinkalike.measures.sample_size import effective_number, has_interval, why_no_interval
from thinkalike.screen import show_text, span
from thinkalike.states.stimuli import StimulusStates, numbered
from thinkalike.store import Headline, Result
from thinkalike.tables import matrix_rows

log = logging.getLogger(__name__)

FOLDS = 10  # of the jackknife
FEWEST_PAIRS = 10  # of stimuli of one word, whose distances are ranked
SIGNS = {
    "spearman": "Spearman's ρ",
    "tau_a": "Kendall's τ_a",
    "corr": "Pearson's r",
    "cosine": "cosine",
    "corr_cov": "whitened Pearson's r",
    "cosine_cov": "whitened cosine",
}


@dataclass
class RSAConfig(DistanceConfig):
    """The settings of representational similarity analysis."""

    kind: str = "rsa"
    distance: Literal[DistanceName, "crossnobis"] = "euclidean"  # type: ignore[assignment]
    # of sentences, in Mantel's test; 0: no p-values
    permutations: int = setting(0, least=0, most=10**6)
    comparator: Literal["spearman", "tau_a", "corr", "cosine", "corr_cov", "cosine_cov"] = "spearman"
    noise: Literal["shrinkage", "diagonal", "none"] = "shrinkage"  # of distance=crossnobis
    # of subjects and stimuli; 0: intervals are over subjects alone
    resamples: int = setting(1000, least=0, most=10**6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.comparator in WHITENED and self.distance == "manhattan":
            found = f"measure.comparator={self.comparator} compares squared Euclidean distances, not manhattan ones"
            raise ConfigError(f"{found}; choose measure.comparator=corr or another distance")

    def settings_read(self) -> frozenset[str]:
        read = super().settings_read()
        return read if self.distance == "crossnobis" else read - {"noise"}


def layer_distances(side: StimulusStates, measure: DistanceConfig) -> list[NeuralDistances]:
    """Return the distances of stimuli in each layer; a model, which has no noise, has no crossnobis ones.

    Raises:
        DataError: crossnobis distances are asked for, and a recording has one run, or no inverse of its noise.
        ValueError: see `NeuralDistances`.
    """
    if not isinstance(measure, RSAConfig) or measure.distance != "crossnobis":
        return _distances_of_states(side, measure.distance)
    if not side.runs:
        return _distances_of_states(side, "euclidean")
    found = []
    for layer, runs in zip(side.layers, side.runs, strict=True):
        if len(runs) < 2:
            raise DataError(f"{side.origin['name']} has one run, and measure.distance=crossnobis needs two or more")
        try:
            found.append(NeuralDistances.given(crossnobis(runs, measure.noise)))
        except ValueError as error:
            message = str(error).replace("noise=", "measure.noise=")
            raise DataError(f"{side.origin['name']}: {layer}: {message}") from error
    return found


def _distances_of_states(side: StimulusStates, distance: str) -> list[NeuralDistances]:
    named = zip(side.layers, side.states, strict=True)
    return [NeuralDistances.of(states, distance, f"{side.name} {layer}") for layer, states in named]


class RSA(OfStimuli, kind="rsa", version=6, reads=("model", "target", "layers", "measure", "stimuli", "seed")):
    """Compares all layers of `model`, and of `model@target` if that is another, with all of them."""

    of_models: ClassVar[str] = "pairs"
    smallest: ClassVar[Mapping[str, Any]] = {"stimuli.sentences": 40}

    def completed(self, config: AnalyzeConfig) -> AnalyzeConfig:
        measure = config.measure_as(RSAConfig)
        if measure.distance == "crossnobis" and not config.activations:
            raise ConfigError("measure.distance=crossnobis needs runs of a recording; give activations=FILE")
        return super().completed(config)

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Resamples are of subjects, and without them p is of permutations."""
        of_others = {"permutations": 0} if config.subjects else {"resamples": RSAConfig.resamples}
        return {**super().unread(config), **{f"measure.{name}": value for name, value in of_others.items()}}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure = config.measure_as(RSAConfig)
        stimuli: Stimuli = work.input("stimuli", Stimuli)
        with work.phase("states"):
            (stimuli, sides), every = of_stimuli.states_of_sides(config, stimuli)
        of_stimuli.warn_of_words(stimuli)
        try:
            more = {}
            if every:
                more["with_massive"] = rsa(_distances(every.sides, measure), comparator=measure.comparator)
            layers = _distances(sides, measure)
            similarity = _similarity(config, stimuli, layers)
            more |= {"low": similarity.low, "high": similarity.high}
            if stimuli.confounded_with_words():
                more["given_word"] = _given_word(layers, stimuli)
            if measure.permutations:
                more |= _p_values(layers, measure, config.seed, stimuli)
        except ValueError as error:
            raise DataError(f"{stimuli.source}: {error}{numbered(sides, str(error))}") from error
        rows = of_stimuli.rows_of_sides(sides)
        scalars = {"stimuli": float(len(stimuli))}
        off = ~np.eye(len(layers), dtype=bool)
        if off.any():
            scalars["mean_similarity"] = float(similarity.value.numpy()[off].mean())
        return Outcome(
            matrix_rows(rows, rows, value=similarity.value, **more),
            scalars,
            {"value": similarity.value.numpy()},
            models=[side.origin for side in sides],
            facts=of_stimuli.stimuli_facts(stimuli),
            blank=("p", "p_of_largest", "given_word"),  # of few sentences; of states that the word determines
        )

    def compare(self, config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]) -> None:
        measure = config.measure_as(RSAConfig)
        layers = _distances(sides, measure)
        _similarity(config, stimuli, layers)
        if stimuli.confounded_with_words():
            _given_word(layers, stimuli)
        if measure.permutations:
            _p_values(layers, measure, config.seed, stimuli)

    def draw(self, result: Result, folder: Path) -> None:
        comparator = result.config["measure"]["comparator"]
        about = f"{result.scalars['stimuli']:,.0f} stimuli"
        figures.similarity({f"{SIGNS[comparator]} of distances": result.table}, folder, about=about)

    def headlines(self, result: Result) -> Sequence[Headline]:
        pairs = _different(result.table)
        if pairs.empty:
            return super().headlines(result)
        most = pairs.iloc[int(pairs["value"].argmax())]
        mean = Headline("mean_similarity", result.scalars["mean_similarity"])
        return [mean, Headline.with_ends("greatest_similarity", most["value"], most["low"], most["high"])]

    def show(self, result: Result) -> None:
        pairs, stimuli = _different(result.table), result.provenance["stimuli"]
        if pairs.empty:
            return
        show_text(f"{stimuli['count']} stimuli of {stimuli['source']}, 95 % intervals over their groups")
        sign = SIGNS[result.config["measure"]["comparator"]].removeprefix("Spearman's ")
        for word, rows in (("Most", pairs.nlargest(1, "value")), ("Least", pairs.nsmallest(1, "value"))):
            (row,) = rows.itertuples()
            show_text(
                f"{word} alike: {row.source} layer {row.source_layer} and {row.target} layer {row.target_layer}, "
                f"{sign} {span(row.value, row.low, row.high)}."
            )
        for sentence in stimuli.get("confounded_with_words", ()):
            show_text(f"{sentence}.")
        if "given_word" in pairs:
            known = pairs["given_word"].dropna()
            left = f"ρ {known.min():.3f} to {known.max():.3f}" if len(known) else "nothing is left to compare"
            show_text(f"Over pairs of one word: {left}.")


def _distances(sides: Sequence[StimulusStates], measure: RSAConfig) -> list[NeuralDistances]:
    return [layer for side in sides for layer in layer_distances(side, measure)]


def _similarity(config: AnalyzeConfig, stimuli: Stimuli, layers: Sequence[NeuralDistances]) -> Estimate:
    """Return the similarity of every two layers, with its interval over sentences, which is unbounded for few."""
    comparator = config.measure_as(RSAConfig).comparator
    sentences = stimuli.groups.unique(return_counts=True)[1]
    worth = effective_number(sentences)
    if not has_interval(worth):
        reason = why_no_interval(worth, len(sentences), "sentences")
        log.warning("warning: %s: %s", stimuli.source, reason)
        return interval_around(rsa(layers, comparator=comparator), math.inf)
    return rsa_estimate(
        layers,
        comparator=comparator,
        groups=stimuli.groups,
        folds=min(FOLDS, len(sentences)),
        seed=config.seed,
    )


def _p_values(layers: Sequence[NeuralDistances], measure: RSAConfig, seed: int, stimuli: Stimuli) -> dict[str, Tensor]:
    """Return p and p_of_largest of every two layers, and log a warning of too few sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = mantel(layers, None, "euclidean", measure.permutations, seed, measure.comparator, stimuli.groups)
    for warning in caught:
        log.warning("warning: %s: %s", stimuli.source, warning.message)
    return {"p": found.p, "p_of_largest": found.p_of_largest}


def _given_word(layers: Sequence[NeuralDistances], stimuli: Stimuli) -> Tensor:
    """Return Spearman's ρ over pairs of stimuli of one word, NaN where these are equally far in some layer, (l, l)."""
    words = torch.from_numpy(pd.factorize(pd.Series(stimuli.words).str.casefold())[0])
    first, second = torch.triu_indices(len(words), len(words), 1)
    distances = torch.stack([layer.vector() for layer in layers]).cpu().double()[:, words[first] == words[second]]
    if distances.shape[1] < FEWEST_PAIRS:
        return torch.full((len(layers), len(layers)), torch.nan, dtype=torch.float64)
    ranks = mid_ranks(distances, TIED)
    ranks = ranks - ranks.mean(1, keepdim=True)
    unit = ranks / torch.linalg.vector_norm(ranks, dim=1, keepdim=True)  # 0 / 0 of distances that are all equal
    return unit @ unit.T


def _different(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table that compare layers of two models, or two layers if there is one model."""
    across = table["source"] != table["target"]
    return table[across if across.any() else table["source_layer"] != table["target_layer"]]
