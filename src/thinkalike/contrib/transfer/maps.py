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
        """Check the layer pairs, and return hashes of both models and of the text."""
        check_layer_pairs(config.model, config.target, config.layers)
        return fingerprints(config, ("model", "target", "data"))

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the forward passes of the models, from which the time of the job is estimated.

        Each model reads once the text that maps between the models are fitted on, and held-out
        text on which the maps are tested. If source and target are the same model, it reads them
        once in all. At most as much held-out text is read as text to fit on; none is counted if
        its amount is not set.

        Args:
            config: The job.
            shapes: The sizes of the source ("model") and of the target ("target").
        """
        measure = config.measure_as(TransferConfig)  # the settings of the measure
        fit_tokens = config.data.fit_tokens or measure.fit_tokens
        held_out_tokens = min(config.data.evaluation_tokens or 0, fit_tokens)
        tokens = float(fit_tokens + held_out_tokens)
        row_length = config.data.context or min(sizes.context for sizes in shapes.values())
        # Sizes include the name of the model, so that two models do not count as one.
        sizes_of_distinct_models = dict.fromkeys(shapes.values())
        # Maps are between states of blocks, so no logits are computed.
        return [
            sizes.passes("text", tokens, row_length, with_logits=False)
            for sizes in sizes_of_distinct_models
        ]


@dataclass(frozen=True, eq=False)
class PairMap:
    """The maps between a layer of the source and one of the target.

    Attributes:
        phi: The map from the source to the target.
        psi: The map back.
        unexplained: The shares of the variance of states of held-out text that the maps leave
            unexplained.
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
    """Return a table of how well the maps between the layers of two models predict.

    It has a row for each layer pair. The columns "phi" (source to target), "psi" (back) and those
    of both maps in turn have the shares of held-out variance that are left unexplained.
    """
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
    """Fit least-squares maps between the states of each layer pair, in both directions.

    Both models read the text once for all layer pairs: their second moments are what the maps are
    fitted on. The maps are tested on held-out text, of at most as many rows as the other text.

    Args:
        source, target: The models, which have the same tokenizer.
        pairs: The layer pairs.
        corpus: The text to fit on (`fit`), and held-out text (`report`).
        ridge: The ridge, as a share of the mean variance of the states that predict.

    Raises:
        ModelError: The states of a layer do not vary on held-out text.
    """
    # The site of a layer is the point in the model at which its states are read.
    site_pair_of = {}
    for source_layer, target_layer in pairs:
        (source_site,) = sites(source, layers=[source_layer])
        (target_site,) = sites(target, layers=[target_layer])
        site_pair_of[source_layer, target_layer] = (source_site, target_site)
    site_pairs = list(site_pair_of.values())
    held_out_rows = corpus.report.select(slice(len(corpus.fit)))
    budget = Budget.of(target.device)
    fit_moments = state_moments(source, target, site_pairs, corpus.fit, budget)
    budget = Budget.of(target.device)  # of the memory that is free now
    held_out_moments = state_moments(source, target, site_pairs, held_out_rows, budget)

    maps = {}
    for pair, site_pair in site_pair_of.items():
        statistics = fit_moments.of(site_pair)
        both_maps = both_directions(statistics, ridge)
        try:
            unexplained = both_maps.unexplained(held_out_moments.of(site_pair))
        except ValueError as error:
            raise ModelError(
                f"layer {pair[0]} of {source.name} and layer {pair[1]} of {target.name}: {error}"
            ) from None
        maps[pair] = PairMap(
            phi=AffineMap(both_maps.phi.weight.cpu(), both_maps.phi.bias.cpu()),
            psi=AffineMap(both_maps.psi.weight.cpu(), both_maps.psi.bias.cpu()),
            unexplained=unexplained,
            target_mean=statistics.mean_y.cpu(),
        )
    return maps
