"""What a stitching job reads: two models that suit each other, their layer pairs, and the text that both read."""

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
from thinkalike.instruments.stitching.costs import check_room
from thinkalike.measures.closed_forms import LayerPair
from thinkalike.memory import AT_ONCE, GAPS, MARGIN, Budget, in_use
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_models
from thinkalike.models.tokenizers import check_alignable
from thinkalike.processes import own_device

log = logging.getLogger(__name__)


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
    check_room(stitch, source.d_model, target.d_model, pairs, Budget.of(target.device, memory))
    corpus = shared_text(config.data, source, target, max(stitch.steps * stitch.tokens_per_step, 1))
    return Setting(stitch, config.seed, source, target, pairs, corpus, memory)
