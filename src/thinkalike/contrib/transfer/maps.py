"""Maps between two models in both directions, fitted on text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypedDict

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
from thinkalike.job.inputs import Inputs
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.moments import LayerPair
from thinkalike.measures.round_trips import RIDGE, Unexplained, both_directions
from thinkalike.memory import Budget
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import check_layer_pairs, pairs_of_layers
from thinkalike.models.load import load_models
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.states.tokens import sites


@dataclass
class TransferConfig(MeasureConfig):
    """The settings of maps that are fitted on text."""

    # tokens of text that both models read
    fit_tokens: int = setting(2**17, least=2, most=COUNTS)
    # ridge of least squares, in units of the mean variance of the states
    ridge: float = setting(RIDGE, least=0, most=1e6)


class OfMaps(Instrument[AnalyzeConfig]):
    """A measure of maps between layers of `model` and `model@target`."""

    of_models: ClassVar[str] = "pairs"

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Check the layer pairs, and return the fingerprints of both models and the text."""
        check_layer_pairs(config.model, config.target, config.layers)
        return fingerprints(config, ("model", "target", "data"))

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes over the text that maps are fitted and tested on, to estimate time.

        A model that is both source and target reads it once.
        """
        fit_tokens = config.data.fit_tokens or config.measure_as(TransferConfig).fit_tokens
        held_out_tokens = min(config.data.evaluation_tokens or 0, fit_tokens)
        tokens = float(fit_tokens + held_out_tokens)
        row_length = config.data.context or min(shape.context for shape in shapes.values())
        distinct = dict.fromkeys(shapes.values())
        return [shape.passes("text", tokens, row_length, with_logits=False) for shape in distinct]


@dataclass(frozen=True, eq=False)
class PairMap:
    """The maps between a layer of the source and one of the target.

    Attributes:
        phi: The map from the source to the target.
        psi: The map back.
        unexplained: The share of the variance of held-out text that they miss.
        target_mean: The mean of the target's states.
    """

    phi: AffineMap
    psi: AffineMap
    unexplained: Unexplained
    target_mean: Float[Tensor, " e"]


class ModelPair(NamedTuple):
    """A source and a target with one tokenizer, and the layers that are compared."""

    source: FrozenModel
    target: FrozenModel
    layer_pairs: list[LayerPair]


class LayerPairColumns(TypedDict):
    """The first columns of a table of layer pairs."""

    source: str
    target: str
    source_layer: int
    target_layer: int


def load_pair(config: AnalyzeConfig) -> ModelPair:
    """Load both models, and return them with the layer pairs that are compared.

    Raises:
        ModelError: The models have different tokenizers.
    """
    source, target = load_models(config.model, config.target)
    check_same_tokenizer(source, target)
    layer_pairs = pairs_of_layers(config.layers, source.n_layers, target.n_layers)
    return ModelPair(source, target, layer_pairs)


def layer_pair_columns(
    source: FrozenModel, target: FrozenModel, pair: LayerPair
) -> LayerPairColumns:
    """Return the names of both models and the numbers of both layers, as columns of a row."""
    source_layer, target_layer = pair
    return LayerPairColumns(
        source=source.name,
        target=target.name,
        source_layer=source_layer,
        target_layer=target_layer,
    )


def unexplained_table(
    source: FrozenModel, target: FrozenModel, maps: Mapping[LayerPair, PairMap]
) -> pd.DataFrame:
    """Return a row for each layer pair: the share of held-out variance that its maps miss."""
    rows = []
    for pair, pair_map in maps.items():
        columns = layer_pair_columns(source, target, pair)
        rows.append({**columns, **pair_map.unexplained._asdict()})
    return pd.DataFrame(rows)


@torch.no_grad()
def fitted_maps(
    source: FrozenModel,
    target: FrozenModel,
    pairs: Sequence[LayerPair],
    corpus: Corpus,
    ridge: float,
) -> dict[LayerPair, PairMap]:
    """Return the maps of each layer pair, from one pass of both models over the text.

    The unexplained variance is of at most as many held-out rows as the maps are fitted on.

    Args:
        source, target: The models, of one tokenizer.
        pairs: The layer pairs.
        corpus: The text to fit on, and held-out text.
        ridge: The ridge, as a share of the mean variance of the states that predict.

    Raises:
        ModelError: The states of a site do not vary on held-out text.
    """
    site_of_pair = {}
    for source_layer, target_layer in pairs:
        (source_site,) = sites(source, layers=[source_layer])
        (target_site,) = sites(target, layers=[target_layer])
        site_of_pair[source_layer, target_layer] = (source_site, target_site)
    site_pairs = list(site_of_pair.values())
    held_out_rows = corpus.report.select(slice(len(corpus.fit)))
    fit = state_moments(source, target, site_pairs, corpus.fit, Budget.of(target.device))
    held_out = state_moments(source, target, site_pairs, held_out_rows, Budget.of(target.device))

    maps = {}
    for pair, site_pair in site_of_pair.items():
        statistics = fit.of(site_pair)
        both_maps = both_directions(statistics, ridge)
        try:
            unexplained = both_maps.unexplained(held_out.of(site_pair))
        except ValueError as error:
            raise ModelError(
                f"layer {pair[0]} of {source.name} and layer {pair[1]} of {target.name}: {error}"
            ) from None
        maps[pair] = PairMap(
            AffineMap(both_maps.phi.weight.cpu(), both_maps.phi.bias.cpu()),
            AffineMap(both_maps.psi.weight.cpu(), both_maps.psi.bias.cpu()),
            unexplained,
            statistics.mean_y.cpu(),
        )
    return maps
