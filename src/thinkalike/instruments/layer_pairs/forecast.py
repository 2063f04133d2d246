"""What a job of layer pairs will take, known before anything is loaded: passes, time, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torchmetrics import Metric

from thinkalike.config import AnalyzeConfig
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig
from thinkalike.models.layer_choice import layers_at_depths, pairs_of_layers
from thinkalike.states.batches import pool_tokens, sampled
from thinkalike.timing import seconds_of_rows

if TYPE_CHECKING:
    from thinkalike.models.shapes import Passes, Shape, Shapes

Settings = TypeVar("Settings", bound=LayerPairsConfig)

TIMED_ROWS = 4096
"""A forecast compares at most so many rows of states; the time of more rows is extrapolated."""

ROUNDED_COPIES = 5
"""Readings in bits take about so many rounded copies of each model."""

MOST_PAIRS_READ = 5
"""Readings in bits are of at most so many layer pairs."""

# With one layer of each model a batch has three pairs, those within a model included; with two
# layers of each it has ten.
PAIRS_OF_ONE_LAYER = 3
PAIRS_OF_TWO_LAYERS = 10

# Where a batch of one layer of each model takes longer than this, two layers are not timed: nearly
# all of the time is that of pairs.
MOST_SECONDS_OF_ONE_LAYER = 1.0

TIMED_TOKEN_KINDS = 32
"""So many different tokens are among the rows of a batch that is timed given the token."""

TIMED_ROWS_PER_DOCUMENT = 32
"""The documents of a batch that is timed have so many rows."""


def both_shapes(shapes: Shapes) -> tuple[Shape, Shape]:
    """Return the shapes of the source and of the target.

    Args:
        shapes: The shapes by "model" and "target"; without a target it is the source.
    """
    source = shapes["model"]
    return source, shapes.get("target", source)


def count_layers(
    config: AnalyzeConfig, shapes: Shapes, *, has_embedding: bool
) -> dict[Shape, int]:
    """Return how many sites of each different model are compared.

    Args:
        config: The job.
        shapes: The shapes of its models.
        has_embedding: Whether the site before block 0 is compared, too.
    """
    source, target = both_shapes(shapes)
    source_layers = source.layers
    target_layers = target.layers
    if config.layers not in ("same", "all"):
        pairs = pairs_of_layers(config.layers, source_layers, target_layers)
        source_layers = len({layer for layer, _ in pairs})
        target_layers = len({layer for _, layer in pairs})

    # A model that is compared with itself has one entry, the count of the target.
    counts = {source: source_layers * _sites_per_layer(config.model.site) + has_embedding}
    counts[target] = target_layers * _sites_per_layer(config.target.site) + has_embedding
    return counts


def _sites_per_layer(site: str | Sequence[str]) -> int:
    """Return how many sites the setting `model.site` names."""
    if isinstance(site, str):
        return 1
    return len(site)


def fewer_layers(count: int, shapes: Shapes) -> dict[str, object]:
    """Return the setting of `count` layer pairs of equal relative depth, for `budget=`.

    It is empty where the models have no more layers than that. It is empty for a folder of states,
    too, which may lack some layers, and where all layers are cheap.
    """
    source, target = both_shapes(shapes)
    have_weights = source.parameters and target.parameters
    if count >= max(source.layers, target.layers) or not have_weights:
        return {}
    return {"layers": layers_at_depths(count, source.layers, target.layers)}


def passes_over_batches(
    config: AnalyzeConfig, measure: LayerPairsConfig, shapes: Shapes, *, has_readings: bool
) -> list[Passes]:
    """Return the passes of both models over all batches, which jobs of one pass share.

    Args:
        config: The job.
        measure: Its settings of the measure.
        shapes: The shapes of its models.
        has_readings: Whether values have readings in bits, which take passes of rounded copies.
    """
    tokens = float(measure.batches * measure.tokens_per_batch)
    row = config.data.context or min(shape.context for shape in shapes.values())
    models = list(dict.fromkeys(shapes.values()))
    passes = []
    for shape in models:
        passes.append(shape.passes("forward passes", tokens, row, full=False, is_shared=True))
    if has_readings:
        tokens_read = float(sampled(measure).batches * measure.tokens_per_batch)
        tokens_of_copies = tokens_read * (1 + ROUNDED_COPIES)
        for shape in models:
            passes.append(shape.passes("readings", tokens_of_copies, row, full=False))
    return passes


def seconds_of_comparing(
    measure: LayerPairsConfig,
    layer_counts: dict[Shape, int],
    seconds_of_batch: Callable[[int], float],
    *,
    same_layers: bool,
    has_readings: bool,
) -> float:
    """Return the seconds that comparing takes, from those of a batch of one and of two layers.

    Args:
        measure: The settings of the measure.
        layer_counts: How many layers of each different model are compared.
        seconds_of_batch: Returns the seconds of a batch of so many layers of each model.
        same_layers: Whether only layers of one number are compared.
        has_readings: Whether values have readings in bits.
    """
    seconds_of_one = seconds_of_batch(1)
    layers = sum(layer_counts.values())
    if same_layers:
        batch = seconds_of_one * layers / 2
    else:
        if seconds_of_one > MOST_SECONDS_OF_ONE_LAYER:
            seconds_of_two = PAIRS_OF_TWO_LAYERS / PAIRS_OF_ONE_LAYER * seconds_of_one
        else:
            seconds_of_two = seconds_of_batch(2)

        # one = 2 layers + 3 pairs, and two = 4 layers + 10 pairs
        of_pair = max((seconds_of_two - 2 * seconds_of_one) / 4, 0.0)
        of_layer = max(seconds_of_one - PAIRS_OF_ONE_LAYER * of_pair, 0.0) / 2
        batch = of_layer * layers + of_pair * layers * (layers + 1) / 2

    seconds = batch * measure.batches
    if has_readings:
        of_readings = MOST_PAIRS_READ * (1 + 2 * ROUNDED_COPIES) * seconds_of_one
        seconds += of_readings * int(sampled(measure).batches)
    return seconds


def time_batch(
    measure: Settings,
    new_metric: Callable[[Settings, int, int], Metric],
    layers: int,
    width: int,
) -> float:
    """Return the seconds of comparing a batch of random states.

    Args:
        measure: The settings of the measure.
        new_metric: Makes a metric for these settings and numbers of layers.
        layers: How many layers each model has.
        width: The width of the states.
    """
    # These do not change the time of a batch, and so do not belong to the name of the timing.
    settings = replace(measure, batches=1, tokens_per_batch=TIMED_ROWS)

    def compare(rows: int) -> None:
        """Compare so many random rows of two models."""
        generator = torch.Generator().manual_seed(0)
        states_by_model = []
        for _ in range(2):
            states = [torch.randn(rows, width, generator=generator) for _ in range(layers)]
            states_by_model.append(states)

        of_metric = replace(settings, tokens_per_batch=rows)
        groups = None
        if measure.conditional_on != "none":
            of_metric = replace(of_metric, conditional_on="token")
            groups = torch.arange(rows) % TIMED_TOKEN_KINDS
        metric = new_metric(of_metric, layers, layers)
        metric.update(
            *states_by_model,
            number=0,
            documents=torch.arange(rows) // TIMED_ROWS_PER_DOCUMENT,
            groups=groups,
        )
        metric.compute()

    name = f"{settings} of width {width}, {layers} layers"
    return seconds_of_rows(name, compare, measure.tokens_per_batch, TIMED_ROWS)


def bytes_of_states(
    config: AnalyzeConfig,
    measure: LayerPairsConfig,
    layer_counts: dict[Shape, int],
    *,
    has_readings: bool,
) -> float:
    """Return the bytes of the states of a pool, and of a batch, which is also there in float32.

    Args:
        config: The job.
        measure: Its settings of the measure.
        layer_counts: How many layers of each different model are compared.
        has_readings: Whether values have readings in bits, which need a copy of a model.
    """
    batch_tokens = measure.tokens_per_batch
    numbers_per_token = 0
    parameters = 0
    for shape, count in layer_counts.items():
        numbers_per_token += count * shape.width
        parameters += shape.parameters

    tokens_of_pool = 0
    if config.data:
        most = pool_tokens(batch_tokens, numbers_per_token, parameters)
        tokens_of_pool = min(most, batch_tokens * measure.batches)
    if measure.conditional_on == "token_position":
        tokens_of_pool *= 2  # the states as they are, and without the means

    total = 0.0
    for shape, count in layer_counts.items():
        bytes_per_number = (tokens_of_pool + batch_tokens) * shape.bytes_of_number
        total += count * shape.width * (bytes_per_number + 4 * batch_tokens)
    if has_readings:
        total += max(shape.bytes for shape in layer_counts)
    return total
