"""The setting of a stitching job: two models, their layer pairs, and the text that both read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from thinkalike.config import DataConfig
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus, TokenRows
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError
from thinkalike.measures.moments import LayerPair
from thinkalike.memory import (
    FRAGMENTATION,
    STATE_BYTES_ON_CPU,
    USABLE_SHARE,
    Budget,
    bytes_in_use,
    check_memory,
    free_cached_memory,
)
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import pairs_of_layers
from thinkalike.models.load import load_models
from thinkalike.processes import own_device
from thinkalike.training.optimizers import momenta
from thinkalike.training.recipe import StitchConfig, StitchJob

log = logging.getLogger(__name__)

CONTROL_TOKENS = 2**16
"""The closed forms of controls and starts are fitted on so many tokens."""

FLOAT32_BYTES = 4.0
FLOAT64_BYTES = 8.0

COPIES_OF_WEIGHT = 3
"""Besides the momenta, a φ in training takes its memory three times: itself, gradient and mean."""


@dataclass(frozen=True)
class StitchSetting:
    """Two models, their layer pairs and the text that both read.

    Attributes:
        config: The map φ and its training.
        seed: The seed of all that is drawn at random.
        source, target: The models.
        layer_pairs: The layers that are stitched, each of the source with one of the target.
        corpus: The text.
        memory: How many bytes the user allows; None: what the machine has.
        ruler: What penalties stand beside, see `TrainConfig`.
    """

    config: StitchConfig
    seed: int
    source: FrozenModel
    target: FrozenModel
    layer_pairs: Sequence[LayerPair]
    corpus: Corpus
    memory: float | None = None
    ruler: str | None = None

    @property
    def source_layers(self) -> list[int]:
        """The source's layer of each pair."""
        return [source_layer for source_layer, _ in self.layer_pairs]

    @property
    def target_layers(self) -> list[int]:
        """The target's layer of each pair."""
        return [target_layer for _, target_layer in self.layer_pairs]

    @property
    def equal_widths(self) -> bool:
        """Whether the residual streams of both models have one width."""
        return self.source.d_model == self.target.d_model

    @property
    def rows_of_closed_forms(self) -> TokenRows:
        """The rows that closed forms are fitted on.

        These are all rows to fit on if φ is a closed form. Otherwise closed forms are only
        controls and starts, and `CONTROL_TOKENS` are enough for them.
        """
        fit = self.corpus.fit
        if self.config.is_closed:
            return fit
        rows = max(CONTROL_TOKENS // fit.context, 1)
        return fit.select(slice(rows))

    @property
    def budget(self) -> Budget:
        """The memory for states outside of training."""
        device = self.target.device
        if self.memory:
            return Budget.of(device, self.memory)
        limit = None
        if device.type == "cpu":
            bytes_with_states = bytes_in_use(device) + FRAGMENTATION * STATE_BYTES_ON_CPU
            limit = bytes_with_states / USABLE_SHARE
        return Budget.of(device, limit)

    def reversed(self, data: DataConfig) -> StitchSetting:
        """Return the setting from the target to the source.

        Args:
            data: The text, which each direction reads with the tokenizer of its target.
        """
        reversed_pairs = [(target_layer, layer) for layer, target_layer in self.layer_pairs]
        fit_tokens = _tokens_of_training(self.config)
        return replace(
            self,
            source=self.target,
            target=self.source,
            layer_pairs=reversed_pairs,
            corpus=shared_text(data, self.target, self.source, fit_tokens),
        )


def load_setting(config: StitchJob) -> StitchSetting:
    """Load models and text, and check that the stitches suit them.

    Raises:
        ConfigError: The kind of the stitches or their number does not suit the models.
    """
    source, target = load_models(
        replace(config.model, device=own_device(config.model.device, config.trainer)),
        replace(config.target, device=own_device(config.target.device, config.trainer)),
    )
    source, target = _cut_at_middle(source, target)
    stitch = config.stitch
    if stitch.both and source is target:
        raise ConfigError(
            f"stitch.both=true needs two models, and {source.name} is source and target"
        )
    _check_widths(stitch, source, target)
    pairs = pairs_of_layers(config.layers, source.n_layers, target.n_layers)
    memory = config.trainer.memory
    budget = Budget.of(target.device, memory)
    _check_memory(stitch, source.d_model, target.d_model, pairs, budget)

    corpus = shared_text(config.data, source, target, _tokens_of_training(stitch))
    free_cached_memory(target.device)
    return StitchSetting(
        config=stitch,
        seed=config.seed,
        source=source,
        target=target,
        layer_pairs=pairs,
        corpus=corpus,
        memory=memory,
        ruler=config.ruler,
    )


def _tokens_of_training(config: StitchConfig) -> int:
    """Return how many tokens all steps read together, at least 1."""
    return max(config.steps * config.tokens_per_step, 1)


def _cut_at_middle(source: FrozenModel, target: FrozenModel) -> tuple[FrozenModel, FrozenModel]:
    """Return models whose layers end before their MLP, if they are to be cut there.

    A model that is stitched to itself stays one object.
    """
    if not (source.sites or target.sites):
        return source, target
    from thinkalike.models.middle import MiddleModel  # jobs at the usual site need not load it

    cut_source = source
    if source.sites:
        cut_source = MiddleModel(source)
    if target is source:
        return cut_source, cut_source
    cut_target = target
    if target.sites:
        cut_target = MiddleModel(target)
    return cut_source, cut_target


def _check_widths(config: StitchConfig, source: FrozenModel, target: FrozenModel) -> None:
    """Raise a ConfigError if a kind of map does not go between the widths of the models.

    With `both` it must go in either direction.
    """
    widths = f"{source.name} has {source.d_model}, {target.name} {target.d_model}"
    kinds = {config.kind, config.init}
    if config.kind in ("identity", "orthogonal", "bias") and source.d_model != target.d_model:
        raise ConfigError(
            f"stitch={config.kind} needs equal widths, and {widths}; use stitch=linear"
        )

    narrows = source.d_model > target.d_model
    narrows_back = config.both and source.d_model < target.d_model
    if "procrustes" in kinds and (narrows or narrows_back):
        raise ConfigError(
            f"procrustes keeps lengths, so it cannot go to a smaller width: {widths}"
        )

    has_rank = not kinds.isdisjoint({"low_rank", "reduced_rank"})
    if has_rank and config.rank > min(source.d_model, target.d_model):
        raise ConfigError(f"stitch.rank={config.rank} is more than the smaller width: {widths}")


def shared_text(
    data: DataConfig, source: FrozenModel, target: FrozenModel, fit_tokens: int
) -> Corpus:
    """Return rows of the tokens of both models; where tokenizers differ, rows of each model's own.

    Args:
        data: The text.
        source, target: The models.
        fit_tokens: How many tokens to fit on are read, unless the data say so.
    """
    for model in (source, target):
        model.check_context(data.context)
    context = min(source.context, target.context)
    if tokenizer_fingerprint(source.tokenizer) == tokenizer_fingerprint(target.tokenizer):
        return read_corpus(
            data, source.tokenizer, context, bos=source.bos_each_row, fit_tokens=fit_tokens
        )

    # Jobs of one tokenizer need not load these modules.
    from thinkalike.data.alignment import check_alignable
    from thinkalike.data.paired import SourceTokenizer

    check_alignable(source, target)
    log.info(
        "%s and %s have different tokenizers: their tokens are aligned", source.name, target.name
    )
    source_tokenizer = SourceTokenizer(
        source.name, source.tokenizer, source.bos_each_row, source.context
    )
    return read_corpus(
        data,
        target.tokenizer,
        context,
        bos=target.bos_each_row,
        fit_tokens=fit_tokens,
        source=source_tokenizer,
    )


def bytes_trained(
    config: StitchConfig, source_width: int, target_width: int, pairs: Sequence[LayerPair]
) -> float:
    """Return the bytes of all φ that are trained together, with gradients, momenta and means.

    0 if nothing is trained.

    Args:
        config: The map φ and its training.
        source_width, target_width: The widths of the models.
        pairs: The layer pairs.
    """
    if not config.trained or config.kind == "identity":
        return 0.0
    maps_per_pair = 1 + len(config.lr_multiples) + config.controls
    maps = len(pairs) * maps_per_pair
    if config.floor:
        maps += len({target_layer for _, target_layer in pairs})

    weights = source_width * target_width
    if config.kind == "low_rank":
        weights = config.rank * (source_width + target_width)
    copies = maps * (COPIES_OF_WEIGHT + momenta(config))
    copies += len(pairs)  # φ after half of the steps
    return FLOAT32_BYTES * weights * copies


def bytes_of_moments(
    source_width: int, target_width: int, pairs: Sequence[LayerPair], maps: int = 0
) -> float:
    """Return the bytes of the moments of states, and of maps that are made of them.

    Moments are d² numbers for each layer of the source, e² for each of the target and d e for each
    layer pair, of both halves of the text.

    Args:
        source_width, target_width: The widths d and e.
        pairs: The layer pairs.
        maps: How many maps of each layer pair there are.
    """
    source_layers = {layer for layer, _ in pairs}
    target_layers = {layer for _, layer in pairs}
    within = len(source_layers) * source_width**2 + len(target_layers) * target_width**2
    across = len(pairs) * source_width * target_width
    return FLOAT64_BYTES * (2 * within + (2 + maps) * across)


def _check_memory(
    config: StitchConfig,
    source_width: int,
    target_width: int,
    pairs: Sequence[LayerPair],
    budget: Budget,
) -> None:
    """Raise a ResourceError if stitches, or the moments of states, do not fit into memory.

    Args:
        config: The map φ and its training.
        source_width, target_width: The widths of the models.
        pairs: The layer pairs.
        budget: The memory.
    """
    check_memory(
        f"stitches of {len(pairs)} layer pairs need",
        bytes_trained(config, source_width, target_width, pairs),
        budget,
        "choose fewer layers, or stitch=low_rank",
    )
    if config.has_closed_forms:
        maps = 1
        remedy = "choose fewer layers"
        if config.controls:
            maps = 3
            remedy += ", stitch.controls=false"
        check_memory(
            f"closed forms of {len(pairs)} layer pairs need",
            bytes_of_moments(source_width, target_width, pairs, maps),
            budget,
            remedy,
        )
