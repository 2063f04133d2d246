"""What a job of layer pairs will take, known before anything is loaded: passes, time, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torchmetrics import Metric

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import refusing_data
from thinkalike.instruments.layer_pairs.settings import (
    LayerPairsConfig,
    LayerPairsSettings,
    settings_for_bit_widths,
)
from thinkalike.models.layer_choice import layers_at_depths, pairs_of_layers
from thinkalike.states.batches import pool_tokens
from thinkalike.states.mixing import CONTROLS
from thinkalike.timing import seconds_of_rows

if TYPE_CHECKING:
    from thinkalike.models.shapes import Passes, Shape, Shapes


TIMED_ROWS = 4096
"""A forecast compares at most so many rows of states; the time of more rows is extrapolated."""

ROUNDED_COPIES = 5
"""Equivalent bit widths take about so many rounded copies of each model."""

CHANGED_COPIES = ROUNDED_COPIES + 1
"""The rounded copies of a model, and its untrained one."""

MOST_PAIRS_READ = 5
"""At most so many layer pairs have an equivalent bit width."""

# With one layer of each model a batch has three pairs, those within a model included; with two
# layers of each it has ten.
PAIRS_OF_ONE_LAYER = 3
PAIRS_OF_TWO_LAYERS = 10

# Where a batch of one layer of each model takes more seconds than this, two layers are not timed.
MOST_SECONDS_OF_ONE_LAYER = 1.0

TIMED_TOKEN_KINDS = 32
"""So many different tokens are among the rows of a batch that is timed given the token."""

TIMED_ROWS_PER_DOCUMENT = 32
"""The documents of a batch that is timed have so many rows."""


def source_and_target_shapes(shapes: Shapes) -> tuple[Shape, Shape]:
    """Return the shapes (name, and sizes such as width and depth) of the source and the target.

    Args:
        shapes: The shape of each model by its part of the configuration, "model" and "target".
            Without a target, the model is compared with itself.
    """
    source = shapes["model"]
    return source, shapes.get("target", source)


def compared_layers_by_shape(
    config: AnalyzeConfig, shapes: Shapes, *, has_embedding: bool
) -> dict[Shape, int]:
    """Return how many layers of each model are compared.

    The keys are shapes: a `Shape` stands for a model that is not loaded yet, and has its name and
    sizes. A layer that is read at several hook points counts once for each. A model that is
    compared with itself has one entry: the number of its layers that are compared as the target.

    Args:
        config: The job.
        shapes: The shape of each model by its part of the configuration, "model" and "target".
        has_embedding: Whether the embedding is compared like a layer.
    """
    source, target = source_and_target_shapes(shapes)
    source_layers = source.layers
    target_layers = target.layers
    if config.layers not in ("same", "all"):
        pairs = pairs_of_layers(config.layers, source_layers, target_layers)
        source_layers = len({layer for layer, _ in pairs})
        target_layers = len({layer for _, layer in pairs})

    n_embeddings = int(has_embedding)
    counts = {source: source_layers * _sites_per_layer(config.model.site) + n_embeddings}
    # This replaces the first count if the source and the target are one model.
    counts[target] = target_layers * _sites_per_layer(config.target.site) + n_embeddings
    return counts


def _sites_per_layer(site: str | Sequence[str]) -> int:
    """Return at how many hook points of each layer states are read.

    Args:
        site: The setting `model.site`: one hook point or several.
    """
    if isinstance(site, str):
        return 1
    return len(site)


def setting_of_fewer_layers(count: int, shapes: Shapes) -> dict[str, object]:
    """Return the setting `layers=` with fewer layer pairs, of equal relative depth.

    The dictionary is empty if the models have no more than `count` layers, and for a folder of
    states, which may lack some layers and needs no passes of a model.

    Args:
        count: How many layer pairs are compared.
        shapes: The shapes of the models; a folder of states has no parameters.
    """
    source, target = source_and_target_shapes(shapes)
    have_weights = source.parameters and target.parameters
    if count >= max(source.layers, target.layers) or not have_weights:
        return {}
    return {"layers": layers_at_depths(count, source.layers, target.layers)}


def passes_over_batches(
    config: AnalyzeConfig, measure: LayerPairsConfig, shapes: Shapes, *, has_bit_widths: bool
) -> list[Passes]:
    """Return the forward passes of the models over all batches, to estimate the job's time.

    Jobs that run together share these passes. For equivalent bit widths, each model and its
    `CHANGED_COPIES` rounded copies are run in further passes ("readings"), which are not shared.

    Args:
        config: The job.
        measure: Its settings of the measure.
        shapes: The sizes of its models, with their names. A model that stands on both sides counts
            once.
        has_bit_widths: Whether equivalent bit widths are computed.
    """
    tokens = float(measure.batches * measure.tokens_per_batch)
    row_length = config.data.context or min(shape.context for shape in shapes.values())
    different_shapes = list(dict.fromkeys(shapes.values()))
    # No pass needs the logits.
    passes = []
    for shape in different_shapes:
        passes.append(
            shape.passes("forward passes", tokens, row_length, with_logits=False, is_shared=True)
        )
    if has_bit_widths:
        batches = settings_for_bit_widths(measure).batches
        tokens_per_copy = float(batches * measure.tokens_per_batch)
        tokens_of_copies = tokens_per_copy * (1 + CHANGED_COPIES)  # 1: the model itself
        for shape in different_shapes:
            passes.append(
                shape.passes("readings", tokens_of_copies, row_length, with_logits=False)
            )
    return passes


def seconds_of_comparing(
    measure: LayerPairsConfig,
    layer_counts: dict[Shape, int],
    seconds_of_batch: Callable[[int], float],
    *,
    same_layers: bool,
    has_bit_widths: bool,
) -> float:
    """Return the seconds that comparing takes, extrapolated from a batch of one and of two layers.

    A batch takes a time per layer, to prepare it, and a time per layer pair. Pairs within a model
    are compared too, so L layers of both models together have L (L + 1) / 2 pairs.

    Args:
        measure: The settings of the measure.
        layer_counts: How many layers of each model are compared, see `compared_layers_by_shape`.
        seconds_of_batch: Returns the seconds for a batch of so many layers of each model.
        same_layers: Whether only layers of the same number are compared.
        has_bit_widths: Whether equivalent bit widths are computed.
    """
    seconds_of_one = seconds_of_batch(1)
    layers = sum(layer_counts.values())
    if same_layers:
        seconds_per_batch = seconds_of_one * layers / 2
    else:
        if seconds_of_one > MOST_SECONDS_OF_ONE_LAYER:
            # Too slow to time: layer pairs take nearly all of the time.
            seconds_of_two = PAIRS_OF_TWO_LAYERS / PAIRS_OF_ONE_LAYER * seconds_of_one
        else:
            seconds_of_two = seconds_of_batch(2)

        # Solve for the two times. One layer of each model: 2 layers and 3 pairs take
        # `seconds_of_one`. Two of each: 4 layers and 10 pairs take `seconds_of_two`.
        per_pair = max((seconds_of_two - 2 * seconds_of_one) / 4, 0.0)
        per_layer = max(seconds_of_one - PAIRS_OF_ONE_LAYER * per_pair, 0.0) / 2
        seconds_per_batch = per_layer * layers + per_pair * layers * (layers + 1) / 2

    seconds = seconds_per_batch * measure.batches
    if has_bit_widths:
        # Each pair: the two models, and each of both with each of its changed copies and with
        # each way of local mixing.
        comparisons = MOST_PAIRS_READ * (1 + 2 * (CHANGED_COPIES + len(CONTROLS)))
        batches = int(settings_for_bit_widths(measure).batches)
        seconds += comparisons * seconds_of_one * batches
    return seconds


def seconds_of_random_batch(
    measure: LayerPairsSettings,
    new_metric: Callable[[LayerPairsSettings, int, int], Metric],
    layers: int,
    width: int,
) -> float:
    """Return the seconds of comparing a batch of random states of two models.

    Of large batches, at most `TIMED_ROWS` rows are timed, and the time is extrapolated.

    Args:
        measure: The settings of the measure.
        new_metric: Makes a metric for these settings and numbers of layers of either model.
        layers: How many layers each model has.
        width: The width of the states.

    Raises:
        DataError: The measure cannot compare so many rows.
    """
    # The name of a timing, under which it is remembered, has the same value of these settings in
    # all jobs: they do not change the time of so many rows.
    settings = replace(measure, batches=1, tokens_per_batch=TIMED_ROWS)

    def compare(rows: int) -> None:
        """Compare random states of two models with this number of rows."""
        generator = torch.Generator().manual_seed(0)
        states_by_model = []
        for _ in range(2):
            states = [torch.randn(rows, width, generator=generator) for _ in range(layers)]
            states_by_model.append(states)

        settings_of_metric = replace(settings, tokens_per_batch=rows)
        token_of_rows = None
        if measure.conditional_on != "none":
            settings_of_metric = replace(settings_of_metric, conditional_on="token")
            token_of_rows = torch.arange(rows) % TIMED_TOKEN_KINDS
        with refusing_data(f"a batch of random states of {rows} rows"):
            metric = new_metric(settings_of_metric, layers, layers)
            metric.update(
                *states_by_model,
                number=0,
                documents=torch.arange(rows) // TIMED_ROWS_PER_DOCUMENT,
                groups=token_of_rows,
            )
            metric.compute()

    name = f"{settings} of width {width}, {layers} layers"
    return seconds_of_rows(name, compare, measure.tokens_per_batch, TIMED_ROWS)


def bytes_of_states(
    config: AnalyzeConfig,
    measure: LayerPairsConfig,
    layer_counts: dict[Shape, int],
    *,
    has_bit_widths: bool,
) -> float:
    """Return the bytes of the states that are in memory at once, to estimate the job's memory.

    These are the states of a pool (the text over which models run at once) and of a batch, in the
    dtype of the model, and the batch in float32 as well.

    Args:
        config: The job.
        measure: Its settings of the measure.
        layer_counts: How many layers of each model are compared, see `compared_layers_by_shape`.
        has_bit_widths: Whether equivalent bit widths are computed, for which a rounded copy of a
            model is in memory.
    """
    batch_tokens = measure.tokens_per_batch
    numbers_per_token = 0
    parameters = 0
    for shape, count in layer_counts.items():
        numbers_per_token += count * shape.width
        parameters += shape.parameters

    tokens_of_pool = 0  # stimuli, which are no text, have no pools
    if config.data:
        most_tokens = pool_tokens(batch_tokens, numbers_per_token, parameters)
        tokens_of_pool = min(most_tokens, batch_tokens * measure.batches)
    if measure.conditional_on == "token_position":
        tokens_of_pool *= 2  # the states as they are, and without the means

    total = 0.0
    for shape, count in layer_counts.items():
        bytes_in_own_dtype = (tokens_of_pool + batch_tokens) * shape.bytes_of_number
        bytes_in_float32 = 4 * batch_tokens
        total += count * shape.width * (bytes_in_own_dtype + bytes_in_float32)
    if has_bit_widths:
        total += max(shape.bytes for shape in layer_counts)
    return total
