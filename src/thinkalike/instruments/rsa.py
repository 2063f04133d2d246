"""measure=rsa: how alike the distances of stimuli are in every two layers (Salle et al. 2024, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig, ranged
from thinkalike.data import Stimuli
from thinkalike.errors import DataError, one_of
from thinkalike.instruments.of_stimuli import OfStimuli, rows_of_sides, stimuli_facts
from thinkalike.job import Outcome, Work
from thinkalike.measures import Estimate, mantel, rsa_estimate, span
from thinkalike.states import numbered, stimulus_states_of
from thinkalike.store import Result
from thinkalike.tables import matrix_rows

FOLDS = 10  # of the jackknife


@dataclass
class Config(MeasureConfig):
    """The settings of representational similarity analysis."""

    kind: str = "rsa"
    distance: str = "euclidean"  # euclidean | cosine | manhattan | norm_difference
    embed: bool = False  # also the site before block 0
    permutations: int = ranged(0, least=0, most=10**6)  # of Mantel's test; 0: no p-values

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.distance", self.distance, ("euclidean", "cosine", "manhattan", "norm_difference"))


class RSA(OfStimuli, kind="rsa", reads=("model", "target", "measure", "stimuli", "seed")):
    """Compares all layers of `model`, and of `model@target` if that is another, with all of them."""

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure: Any = config.measure
        stimuli: Stimuli = work.inputs["stimuli"]
        sides = stimulus_states_of(config, stimuli, measure.embed)
        layers = [layer for side in sides for layer in side.states]
        try:
            similarity = _estimate(measure, layers, stimuli, config.seed)
            more = {"low": similarity.low, "high": similarity.high}
            if measure.permutations:
                more["p"] = mantel(layers, None, measure.distance, measure.permutations, config.seed)[1]
        except ValueError as error:
            raise DataError(f"{stimuli.source}: {error}{numbered(sides)}") from error
        rows = rows_of_sides(sides)
        scalars = {"stimuli": float(len(stimuli))}
        off = ~np.eye(len(layers), dtype=bool)
        if off.any():
            scalars["mean_similarity"] = float(similarity.value.numpy()[off].mean())
        return Outcome(
            matrix_rows(rows, rows, value=similarity.value, **more),
            scalars,
            {"value": similarity.value.numpy()},
            models=[side.origin for side in sides],
            facts=stimuli_facts(stimuli),
        )

    def draw(self, result: Result, folder: Path) -> None:
        figures.similarity({"Spearman's ρ of distances": result.table}, folder)

    def show(self, result: Result) -> None:
        """Print the pairs of layers that are most and least alike."""
        table = result.table
        itself = (table["source"] == table["target"]) & (table["source_layer"] == table["target_layer"])
        pairs = table[~itself]
        if pairs.empty:
            return
        for word, rows in (("most", pairs.nlargest(1, "value")), ("least", pairs.nsmallest(1, "value"))):
            (row,) = rows.itertuples()
            print(
                f"{word} alike: {row.source} layer {row.source_layer} and {row.target} layer {row.target_layer}, "
                f"ρ {span(row.value, row.low, row.high)}"
            )


def _estimate(measure: Any, layers: list[torch.Tensor], stimuli: Stimuli, seed: int) -> Estimate:
    """Return RSA with intervals over sentences; for stimuli of few sentences, over stimuli."""
    sentences = torch.from_numpy(np.ascontiguousarray(stimuli.sentence))
    groups = sentences if len(sentences.unique()) >= FOLDS else None
    return rsa_estimate(layers, distance=measure.distance, groups=groups, folds=FOLDS, seed=seed)
