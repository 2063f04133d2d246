"""Maps between two models in both directions, fitted on text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig, MeasureConfig, setting
from thinkalike.config.parts import COUNTS
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.data.rows import Corpus
from thinkalike.errors import ModelError
from thinkalike.evaluation.moments import state_moments
from thinkalike.job import Instrument, fingerprints
from thinkalike.measures.closed_forms import AffineMap, LayerPair
from thinkalike.measures.round_trips import RIDGE, Unexplained, both_directions
from thinkalike.memory import Budget
from thinkalike.models.families import check_layer_pairs, pairs_of_layers
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_models
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.states.tokens import sites


@dataclass
class TransferConfig(MeasureConfig):
    """The settings of maps that are fitted on text."""

    fit_tokens: int = setting(2**17, least=2, most=COUNTS)  # of text that both models read
    # of least squares, in units of the mean variance of the states
    ridge: float = setting(RIDGE, least=0, most=1e6)


class OfMaps(Instrument[AnalyzeConfig]):
    """A measure of maps between layers of `model` and `model@target`."""

    of_models: ClassVar[str] = "pairs"

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        check_layer_pairs(config.model, config.target, config.layers)
        return fingerprints(config, ("model", "target", "data"))

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of both models over the text that maps are fitted on, and over held-out text."""
        fitted = config.data.fit_tokens or config.measure.fit_tokens  # type: ignore[attr-defined]
        tokens = float(fitted + min(config.data.report_tokens or 0, fitted))
        row = config.data.context or min(shape.context for shape in shapes.values())
        return [each.passes("text", tokens, row, full=False) for each in dict.fromkeys(shapes.values())]


@dataclass(frozen=True, eq=False)
class PairMap:
    """φ from a layer of the source to one of the target, ψ back, and the variance of held-out text that they miss."""

    phi: AffineMap
    psi: AffineMap
    unexplained: Unexplained
    target_mean: Float[Tensor, " e"]


def models_and_pairs(config: AnalyzeConfig) -> tuple[FrozenModel, FrozenModel, list[LayerPair]]:
    """Return both models, which must have one tokenizer, and their layer pairs."""
    source, target = load_models(config.model, config.target)
    check_same_tokenizer(source, target)
    return source, target, pairs_of_layers(config.layers, source.n_layers, target.n_layers)


def named(source: FrozenModel, target: FrozenModel, pair: LayerPair) -> dict[str, Any]:
    return {"source": source.name, "target": target.name, "source_layer": pair[0], "target_layer": pair[1]}


def unexplained_table(source: FrozenModel, target: FrozenModel, maps: Mapping[LayerPair, PairMap]) -> pd.DataFrame:
    return pd.DataFrame([named(source, target, pair) | each.unexplained._asdict() for pair, each in maps.items()])


@torch.no_grad()
def fitted_maps(
    source: FrozenModel, target: FrozenModel, pairs: Sequence[LayerPair], corpus: Corpus, ridge: float
) -> dict[LayerPair, PairMap]:
    """Return the maps of each layer pair, from one pass of both models over the text.

    The unexplained variance is of at most as many rows of the report as the maps are fitted on.
    """
    at = [(sites(source, layers=[layer])[0], sites(target, layers=[depth])[0]) for layer, depth in pairs]
    texts = corpus.fit, corpus.report.select(slice(len(corpus.fit)))
    fit, held_out = (state_moments(source, target, at, rows, Budget.of(target.device)) for rows in texts)
    found = {}
    for pair, places in zip(pairs, at, strict=True):
        seen = fit.of(places)
        maps = both_directions(seen, ridge)
        try:
            left = maps.unexplained(held_out.of(places))
        except ValueError as error:
            sides = f"layer {pair[0]} of {source.name} and layer {pair[1]} of {target.name}"
            raise ModelError(f"{sides}: {error}") from None
        phi, psi = (AffineMap(each.weight.cpu(), each.bias.cpu()) for each in maps)
        found[pair] = PairMap(phi, psi, left, seen.mean_y.cpu())
    return found
