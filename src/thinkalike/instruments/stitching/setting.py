"""The setting of a stitching job: two models, their layer pairs, the text that both read; and what the job takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from thinkalike.config import DataConfig, StitchConfig, TrainConfig, pairs_of_layers
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus, SourceText
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError
from thinkalike.evaluation.likeness import GROUPED_TOKENS, SOURCE_BYTES, TARGET_BYTES
from thinkalike.measures.closed_forms import LayerPair
from thinkalike.measures.losses import bytes_of_logits
from thinkalike.memory import AT_ONCE, GAPS, MARGIN, Budget, check_memory, in_use
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_models
from thinkalike.models.shapes import Passes, Shape, Shapes, both_of
from thinkalike.models.survey import check_alignable
from thinkalike.processes import own_device
from thinkalike.training.optimizers import momenta

log = logging.getLogger(__name__)

REPORTED = 2**18  # tokens of the report where the data do not state it
STATISTICS = 2**16  # tokens, at most, of closed forms, and of the likeness of states
TRAINED = 2  # passes of a step through frozen weights: forward, and the gradients of states


@dataclass(frozen=True)
class Setting:
    """Two models, their layer pairs and the text that both read; `memory` is the most bytes that the user allows."""

    config: StitchConfig
    seed: int
    source: FrozenModel
    target: FrozenModel
    layer_pairs: Sequence[LayerPair]
    corpus: Corpus
    memory: float | None = None

    @property
    def equal_widths(self) -> bool:
        return self.source.d_model == self.target.d_model

    @property
    def budget(self) -> Budget:
        """The memory for states outside of training."""
        place = self.target.device
        limit = (in_use(place) + GAPS * AT_ONCE) / MARGIN if place.type == "cpu" else None
        return Budget.of(place, self.memory or limit)

    def columns(self) -> dict[str, Any]:
        """Return the columns of a table that name models and layers, with a row per layer pair."""
        names = {"source": self.source.name, "target": self.target.name}
        layers = zip(("source_layer", "target_layer"), zip(*self.layer_pairs, strict=True), strict=True)
        return names | {name: list(own) for name, own in layers}

    def reversed(self, data: DataConfig) -> Setting:
        """Return the same from the target to the source."""
        config, pairs = self.config, [(depth, layer) for layer, depth in self.layer_pairs]
        corpus = shared_text(data, self.target, self.source, max(config.steps * config.tokens_per_step, 1))
        return replace(self, source=self.target, target=self.source, layer_pairs=pairs, corpus=corpus)


def _check_widths(config: StitchConfig, source: FrozenModel, target: FrozenModel) -> None:
    widths = f"{source.name} has {source.d_model}, {target.name} {target.d_model}"
    if config.kind in ("identity", "orthogonal", "bias") and source.d_model != target.d_model:
        raise ConfigError(f"stitch={config.kind} needs equal widths, and {widths}; use stitch=linear")
    narrower = source.d_model > target.d_model or (config.both and source.d_model < target.d_model)
    if "procrustes" in (config.kind, config.init) and narrower:
        raise ConfigError(f"procrustes keeps lengths, so it cannot go to a smaller width: {widths}")
    limited = {"low_rank", "reduced_rank"} & {config.kind, config.init}
    if limited and config.rank > min(source.d_model, target.d_model):
        raise ConfigError(f"stitch.rank={config.rank} is more than the smaller width: {widths}")


def shared_text(data: DataConfig, source: FrozenModel, target: FrozenModel, fit_tokens: int) -> Corpus:
    """Read rows of the tokens of both models, or, where tokenizers differ, of each model's own.

    Raises:
        ModelError: the tokens cannot be aligned.
        DataError: there is too little text.
    """
    context = min(source.context, target.context)
    if tokenizer_fingerprint(source.tokenizer) == tokenizer_fingerprint(target.tokenizer):
        return read_corpus(data, source.tokenizer, context, bos=source.bos_each_row, fit_tokens=fit_tokens)
    check_alignable(source, target)
    log.info("%s and %s have different tokenizers: their tokens are aligned", source.name, target.name)
    reader = SourceText(source.name, source.tokenizer, source.bos_each_row, source.context)
    bos = target.bos_each_row
    return read_corpus(data, target.tokenizer, context, bos=bos, fit_tokens=fit_tokens, source=reader)


def _stitches_in(config: StitchConfig, pairs: Sequence[LayerPair]) -> int:
    """Return how many φ are trained together: of all pairs, rates and controls, and of the target into itself."""
    depths = {depth for _, depth in pairs}
    return len(pairs) * (1 + len(config.lr_multiples) + config.controls) + config.floor * len(depths)


def _bytes_of_map(config: StitchConfig, d: int, e: int) -> float:
    """Return the bytes of a φ's linear maps from width d to width e, in float32."""
    if config.kind == "identity":
        return 0.0
    return 4.0 * (config.rank * (d + e) if config.kind == "low_rank" else d * e)


def _bytes_of_moments(d: int, e: int, pairs: Sequence[LayerPair], maps: int = 0) -> float:
    """Return the bytes of Σ d² + Σ e² over the layers that are read and (1 + maps) Σ d e over their pairs."""
    layers, depths = (len(set(side)) for side in zip(*pairs, strict=True))
    return 8.0 * (layers * d**2 + depths * e**2 + (1 + maps) * len(pairs) * d * e)


def _check_room(config: StitchConfig, d: int, e: int, pairs: Sequence[LayerPair], budget: Budget) -> None:
    """Check that stitches with gradients and momenta in float32, and closed forms in float64, fit into memory."""
    if config.trained:
        count = _stitches_in(config, pairs)
        kept = _bytes_of_map(config, d, e) * (count * (3 + momenta(config)) + len(pairs))
        check_memory(f"{count} stitches need", kept, budget, "choose fewer layers, or stitch=low_rank")
        tokens = 12.0 * config.tokens_per_step  # as they are read, and as they are given to the models
        check_memory(f"stitch.tokens_per_step={config.tokens_per_step} needs", kept + tokens, budget, "lower it")
    if config.controls or config.init != "identity" or not (config.trained or config.kind == "identity"):
        remedy = "choose fewer layers" + (", stitch.controls=false" if config.controls else "")
        closed = _bytes_of_moments(d, e, pairs, maps=3 if config.controls else 1)
        check_memory(f"closed forms of {len(pairs)} layer pairs need", closed, budget, remedy)


def load_setting(config: TrainConfig) -> Setting:
    """Load models and text, and check that kind and size of the stitches suit them.

    Raises:
        ConfigError: the kind of map does not suit the models' widths, layers do not exist, or memory is too small.
        ModelError: a model cannot be loaded, or tokens cannot be aligned.
        DataError: there is too little text.
    """
    stitch, memory, both = config.stitch, config.trainer.memory_bytes, (config.model, config.target)
    source, target = load_models(*(replace(e, device=own_device(e.device, config.trainer)) for e in both))
    if stitch.both and source is target:
        raise ConfigError(f"stitch.both=true needs two models, and {source.name} is source and target")
    _check_widths(stitch, source, target)
    pairs = pairs_of_layers(config.layers, source.n_layers, target.n_layers)
    _check_room(stitch, source.d_model, target.d_model, pairs, Budget.of(target.device, memory))
    corpus = shared_text(config.data, source, target, max(stitch.steps * stitch.tokens_per_step, 1))
    return Setting(stitch, config.seed, source, target, pairs, corpus, memory)


def _passes(config: TrainConfig, source: Shape, target: Shape, pairs: Sequence[LayerPair]) -> list[Passes]:
    """Return the passes of one direction; each stitch runs the tail of the target."""
    stitch, row = config.stitch, config.data.context or min(source.context, target.context)
    report, steps = config.data.report_tokens or REPORTED, stitch.steps * stitch.tokens_per_step * stitch.trained
    fit = min(config.data.fit_tokens or steps or report, steps or report)
    read = (min(fit, STATISTICS) if stitch.trained or stitch.kind == "identity" else fit) + min(report, STATISTICS)
    whole = target.operations.full(row)
    tails = {m: (whole - target.operations.forward(0, m + 1, row)) / whole for _, m in pairs}
    all_tails = sum(tails[m] for _, m in pairs)
    fits = all_tails * (stitch.seeds + len(stitch.lr_multiples) + stitch.controls) + stitch.floor * sum(tails.values())
    maps = 3 + 5 * stitch.controls + (1 + len(stitch.lr_multiples) + stitch.seeds + stitch.floor) * stitch.trained
    own = stitch.seeds * (stitch.loss != "cross_entropy") or stitch.floor  # the target's own predictions or states
    found = [
        Passes("training", source, steps, row, stitch.seeds + stitch.controls, full=False),
        Passes("training", target, steps, row, own + TRAINED * fits),
        Passes("likeness", source, read, row, full=False),
        Passes("likeness", target, read, row),
        Passes("report", source, report, row, full=False),
        Passes("report", target, report, row, 1 + maps * all_tails),
    ]
    return [each for each in found if each.tokens]


def passes(config: TrainConfig, shapes: Shapes) -> list[Passes]:
    """Return the passes of a stitching job, of both directions if both are asked for."""
    source, target = both_of(shapes)
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    found = _passes(config, source, target, pairs)
    return found + _passes(config, target, source, [pair[::-1] for pair in pairs]) if config.stitch.both else found


def held(config: TrainConfig, shapes: Shapes) -> float:
    """Return the most bytes that stitches of one direction take: of training, or of the likeness of states.

    All φ that are trained together have gradients, momenta and means, in float32. States of a batch are held as
    `in_parts` says, up to `AT_ONCE` bytes, beside three sets of moments in float64 of all layer pairs.
    """
    source, target = both_of(shapes)
    stitch, pairs = config.stitch, pairs_of_layers(config.layers, source.layers, target.layers)
    tokens = min(config.data.fit_tokens or stitch.steps * stitch.tokens_per_step, STATISTICS)
    layers, depths = (len(set(side)) for side in zip(*pairs, strict=True))
    each = layers * SOURCE_BYTES * source.width + depths * TARGET_BYTES * target.width
    states = min(each * tokens / max(tokens // GROUPED_TOKENS, 1), AT_ONCE)
    alike = states + 3 * _bytes_of_moments(source.width, target.width, pairs) + bytes_of_logits(target.vocabulary)
    trained = _stitches_in(stitch, pairs) * _bytes_of_map(stitch, source.width, target.width) * (3 + momenta(stitch))
    return max(stitch.trained * trained, alike)
