"""What a stitching job will take, known before any weights are loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from thinkalike.data.splits import estimated_token_count
from thinkalike.job.reductions import REDUCTIONS
from thinkalike.models.layer_choice import layers_at_depths, pairs_of_layers
from thinkalike.training.recipe import (
    OF_TRAINING,
    StitchConfig,
    StitchJob,
    fewest_steps,
    whole_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from thinkalike.measures.moments import LayerPair
    from thinkalike.models.shapes import Passes, Shape, Shapes

EVALUATION_TOKENS = 2**18
"""The tokens of the report where the data do not state them."""

SHORT_ROW = 128
"""The tokens of a row where text is little."""

LITTLE_EVALUATION_TEXT = 2**14
"""Where a report has fewer tokens, rows are short."""

STATISTICS_TOKENS = 2**16
"""The most tokens that closed forms beside a training are fitted on."""

MEANS_TOKENS = 2**18
"""The most tokens that the mean states of tokens are of."""

FEWEST_TOKENS_PER_STEP = 1024

COPIES_MEASURED = 4
"""Of six rounded copies, those around the penalties of a job are measured."""

PASSES_PER_STEP = 2
"""A step goes through frozen weights twice: forward, and for the gradients of states."""

CONTROLS_IN_REPORT = 6
"""With controls so many further maps are reported."""

MAPS_IN_REPORT = 2
"""φ and the identity are always reported."""

TRAINING_SETTINGS = {
    "stitch",
    *(f"stitch.{name}" for name in ("kind", "norm", "steps", *OF_TRAINING)),
}
"""The settings that decide how φ is trained. A budget leaves those that a command line has."""

CLOSED_FORM = {"stitch.kind": "least_squares"}


def passes_of_job(config: StitchJob, shapes: Shapes) -> list[Passes]:
    """Return the passes of the models over text that a job will take.

    They are the passes of one or both directions, and, with `similarity=true`, the passes over the
    words at which states are compared.

    Args:
        config: The job.
        shapes: The shapes of the models, "model" (the source) and "target".

    Raises:
        ModelError: A model is a folder of states, which cannot be stitched.
    """
    config.model.check_has_weights()
    config.target.check_has_weights()
    source = shapes["model"]
    target = shapes["target"]
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    passes = _passes_of_direction(config, source, target, pairs)
    if config.stitch.both:
        reversed_pairs = [(target_layer, layer) for layer, target_layer in pairs]
        passes += _passes_of_direction(config, target, source, reversed_pairs)
    if config.similarity:
        from thinkalike.instruments.ruler.words import estimated_tokens_of_words
        from thinkalike.instruments.stitching.similarity import words_for_similarity

        tokens = estimated_tokens_of_words(words_for_similarity([source.width, target.width]))
        for shape in dict.fromkeys([source, target]):
            passes.append(shape.passes("similarity", tokens, SHORT_ROW, with_logits=False))
    return passes


def _passes_of_direction(
    config: StitchJob, source: Shape, target: Shape, pairs: Sequence[LayerPair]
) -> list[Passes]:
    """Return the passes of one direction, without those that read no tokens.

    Each stitch runs the tail of the target: the blocks after the layer where it enters.

    Args:
        config: The job.
        source, target: The shapes of the models of this direction.
        pairs: Its layer pairs.
    """
    stitch = config.stitch
    row = config.data.context or min(source.context, target.context)
    evaluation_tokens = estimated_token_count(
        config.data, config.data.evaluation_tokens or EVALUATION_TOKENS, target.vocabulary
    )
    tokens_of_steps = stitch.steps * whole_rows(stitch.tokens_per_step, row)
    most_fit_tokens = tokens_of_steps or evaluation_tokens
    fit_tokens = min(config.data.fit_tokens or most_fit_tokens, most_fit_tokens)
    training_tokens = tokens_of_steps * stitch.trained
    statistics_tokens = 0
    if stitch.has_closed_forms:
        statistics_tokens = fit_tokens
        if not stitch.is_closed:
            statistics_tokens = min(fit_tokens, STATISTICS_TOKENS)
    means_tokens = min(fit_tokens, MEANS_TOKENS)

    # the share of a full pass that is left after each layer of the target
    full_pass = target.operations.full(row)
    tail_of_layer = {}
    for _, layer in pairs:
        tail_of_layer[layer] = (
            full_pass - target.operations.forward(0, layer + 1, row)
        ) / full_pass
    tails_of_pairs = sum(tail_of_layer[layer] for _, layer in pairs)
    tails_of_floor = stitch.floor * sum(tail_of_layer.values())

    stitches_per_pair = stitch.seeds + len(stitch.lr_multiples) + stitch.controls
    tails_trained = tails_of_pairs * stitches_per_pair + tails_of_floor
    # The loss may compare with the target's own predictions or states, and the floor reads these.
    reads_own_states = stitch.seeds * (stitch.loss != "cross_entropy") or stitch.floor
    maps_of_training = 1 + len(stitch.lr_multiples) + stitch.seeds + stitch.floor
    maps_reported = (
        MAPS_IN_REPORT + CONTROLS_IN_REPORT * stitch.controls + maps_of_training * stitch.trained
    )
    copies = COPIES_MEASURED * (config.ruler is not None)
    passes = [
        source.passes(
            "training", training_tokens, row, stitch.seeds + stitch.controls, with_logits=False
        ),
        target.passes(
            "training", training_tokens, row, reads_own_states + PASSES_PER_STEP * tails_trained
        ),
        source.passes("statistics", statistics_tokens, row, with_logits=False),
        target.passes("statistics", max(statistics_tokens, means_tokens), row, with_logits=False),
        source.passes("report", evaluation_tokens, row, with_logits=False),
        target.passes("report", evaluation_tokens, row, 1 + maps_reported * tails_of_pairs),
        target.passes("calibration points", evaluation_tokens, row, copies),
    ]
    return [entry for entry in passes if entry.tokens]


def settings_of_smaller_jobs(
    config: StitchJob, shapes: Shapes, chosen: Collection[str]
) -> Iterator[dict[str, object]]:
    """Yield settings that take ever less time, for `budget=`, which takes the first that fits.

    They have fewer layers, and then closed-form maps that are fitted on less text. If the user has
    chosen the kind of map φ or its training, that choice stays, and training has fewer steps
    instead, but always enough to settle: a φ that has not settled says nothing about the models.

    Args:
        config: The job.
        shapes: The shapes of its models, "model" (the source) and "target".
        chosen: The names of the settings that the user has given.
    """
    source_layers = shapes["model"].layers
    target_layers = shapes["target"].layers
    shortest_context = min(shape.context for shape in shapes.values())
    row_length = config.data.context or shortest_context
    evaluation_tokens = config.data.evaluation_tokens or EVALUATION_TOKENS
    is_training_chosen = not TRAINING_SETTINGS.isdisjoint(chosen)
    # Each reduction has a number of layer pairs, and a number that divides the amount of text.
    for layers, divisor in REDUCTIONS:
        tokens = evaluation_tokens // divisor
        settings: dict[str, object] = {}
        if layers < max(source_layers, target_layers):
            settings["layers"] = layers_at_depths(layers, source_layers, target_layers)
        if divisor > 1:
            if is_training_chosen and config.stitch.trained:
                settings |= _settings_of_less_training(config.stitch, divisor, row_length, chosen)
            else:
                if not is_training_chosen:
                    settings |= CLOSED_FORM
                settings["data.fit_tokens"] = tokens  # as many as maps are evaluated on
            settings["data.evaluation_tokens"] = tokens
        if tokens < LITTLE_EVALUATION_TEXT and shortest_context > SHORT_ROW:
            # In shorter rows, the same number of tokens comes from more documents.
            settings["data.context"] = SHORT_ROW
            settings["data.aligned"] = True  # each row begins with a new document
        yield settings


def _settings_of_less_training(
    stitch: StitchConfig, divisor: int, row_length: int, chosen: Collection[str]
) -> dict[str, int]:
    """Return settings of a training that reads fewer tokens, in fewer steps.

    There are at least as many steps as training needs to settle, unless the job itself asks for
    fewer. Where that limits the reduction, each step reads fewer tokens, but at least one row and
    `FEWEST_TOKENS_PER_STEP`.

    Args:
        stitch: The map φ and its training.
        divisor: The tokens and steps are divided by this.
        row_length: How many tokens a row has.
        chosen: The names of the settings that the user has given.
    """
    tokens = stitch.steps * stitch.tokens_per_step // divisor
    warmup = None  # a warm-up that the user has not chosen becomes shorter with the training
    if "stitch.warmup" in chosen:
        warmup = stitch.warmup
    enough_to_settle = max(stitch.steps // divisor, fewest_steps(warmup))
    steps = min(enough_to_settle, stitch.steps)
    tokens_per_step = max(tokens // steps, FEWEST_TOKENS_PER_STEP, row_length)
    return {"stitch.steps": steps, "stitch.tokens_per_step": tokens_per_step}


def most_bytes_of_phase(config: StitchJob, shapes: Shapes) -> float:
    """Return the bytes besides the models in the phase of a job that needs most memory.

    This is one of three phases: the training of one direction's stitches; the computation of
    closed forms, with second moments of states and some logits; and, with the setting `ruler`, the
    reading of a rounded copy of the target.
    """
    from thinkalike.instruments.stitching.setting import bytes_of_moments, bytes_trained
    from thinkalike.measures.losses import bytes_of_logits

    source = shapes["model"]
    target = shapes["target"]
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    moments = bytes_of_moments(source.width, target.width, pairs)
    closed_forms = moments + bytes_of_logits(target.vocabulary)
    rounded_copy = 0.0
    if config.ruler is not None:
        rounded_copy = target.bytes
    training = bytes_trained(config.stitch, source.width, target.width, pairs)
    return max(training, closed_forms, rounded_copy)
