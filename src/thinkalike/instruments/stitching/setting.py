"""The setting of a stitching job: two models, their layer pairs, and the text that both read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from thinkalike.advice import named_setting
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
from thinkalike.training.optimizers import momenta_per_weight
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
        """The rows of text that closed forms are fitted on.

        If the map φ itself is a closed form, these are all rows of the fitting text. Otherwise
        closed forms are only controls and starting points of training, for which `CONTROL_TOKENS`
        tokens are enough.
        """
        fit_rows = self.corpus.fit
        if self.config.is_closed:
            return fit_rows
        row_count = max(CONTROL_TOKENS // fit_rows.context, 1)
        return fit_rows.select(slice(row_count))

    @property
    def budget(self) -> Budget:
        """The memory for states outside of training.

        If the user sets no limit, a GPU may be used to its full memory. On a CPU, there is room
        for `STATE_BYTES_ON_CPU` besides the memory in use now, however much is free.
        """
        device = self.target.device
        if self.memory is not None:
            return Budget.of(device, self.memory)
        limit = None
        if device.type == "cpu":
            # Tensors take more memory than their bytes, as memory is fragmented.
            bytes_with_states = bytes_in_use(device) + FRAGMENTATION * STATE_BYTES_ON_CPU
            limit = bytes_with_states / USABLE_SHARE  # a budget uses only this share of its limit
        return Budget.of(device, limit)

    def reversed(self, data: DataConfig) -> StitchSetting:
        """Return the setting of the reverse direction, from the target to the source.

        Args:
            data: The text. It is read again, as its rows are tokens of the direction's target.
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
    """Load models and text, and check that the kind of stitch suits the models.

    Raises:
        ConfigError: The kind of stitch does not go between the widths of the models, or both
            directions are asked for between a model and itself.
        ResourceError: The stitches do not fit into memory.
    """
    # Processes that share a job have a GPU each.
    source, target = load_models(
        replace(config.model, device=own_device(config.model.device, config.trainer)),
        replace(config.target, device=own_device(config.target.device, config.trainer)),
    )
    # A model may be cut inside its blocks, before the MLP, instead of after them.
    source, target = _models_cut_as_asked(source, target)
    stitch = config.stitch
    if stitch.both and source is target:
        raise ConfigError(
            f"{named_setting('stitch.both', True)} needs two models, and {source.name} is "
            "source and target"
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
    """Return how many tokens all steps of training read together, at least 1."""
    return max(config.steps * config.tokens_per_step, 1)


def _models_cut_as_asked(
    source: FrozenModel, target: FrozenModel
) -> tuple[FrozenModel, FrozenModel]:
    """Return the models, each wrapped if it is to be cut inside its blocks.

    Each layer of a wrapped model ends before the MLP of a block. If source and target are one
    model, they stay one object.
    """
    # `sites` is None for a model that is cut between blocks.
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
    """Check that the kind of map that is asked for can go between the widths of the models.

    Identity, orthogonal and bias maps need equal widths. A Procrustes map needs a target that is
    not narrower than the source, and equal widths if both directions are asked for. The rank of a
    low-rank map is at most the smaller width.

    Raises:
        ConfigError: The kind of map does not suit the widths.
    """
    widths = f"{source.name} has {source.d_model}, {target.name} {target.d_model}"
    # `init` is the kind of the closed-form map from which training starts.
    kinds = {config.kind, config.init}
    if config.kind in ("identity", "orthogonal", "bias") and source.d_model != target.d_model:
        raise ConfigError(
            f"{named_setting('stitch', config.kind)} needs equal widths, and {widths}; use "
            f"{named_setting('stitch', 'linear')}"
        )

    narrows = source.d_model > target.d_model
    narrows_back = config.both and source.d_model < target.d_model
    if "procrustes" in kinds and (narrows or narrows_back):
        raise ConfigError(
            f"procrustes keeps lengths, so it cannot go to a smaller width: {widths}"
        )

    is_of_some_rank = not kinds.isdisjoint({"low_rank", "reduced_rank"})
    if is_of_some_rank and config.rank > min(source.d_model, target.d_model):
        raise ConfigError(
            f"{named_setting('stitch.rank', config.rank)} is more than the smaller width: {widths}"
        )


def shared_text(
    data: DataConfig, source: FrozenModel, target: FrozenModel, fit_tokens: int
) -> Corpus:
    """Return the text in rows of tokens that both models read.

    If the tokenizers differ, rows consist of the target's tokens, and each of these is paired with
    a token of the source.

    Args:
        data: The text.
        source, target: The models.
        fit_tokens: How many tokens are read to fit maps on, unless `data` sets their number. The
            text that maps are evaluated on is separate.
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
    """Return the bytes of all maps that are trained together; 0 if nothing is trained.

    Besides the map itself, training keeps its gradient, the momenta of the optimiser and a running
    mean of the map.

    Args:
        config: The map φ and its training.
        source_width, target_width: The widths of the models.
        pairs: The layer pairs.
    """
    if not config.trained or config.kind == "identity":
        return 0.0
    # φ itself, φ at further learning rates, and with controls one from an untrained source.
    maps_per_pair = 1 + len(config.lr_multiples) + int(config.controls)
    maps = len(pairs) * maps_per_pair
    if config.floor:  # each target layer is also stitched to itself
        maps += len({target_layer for _, target_layer in pairs})

    weights = source_width * target_width
    if config.kind == "low_rank":
        weights = config.rank * (source_width + target_width)
    tensors_in_memory = maps * (COPIES_OF_WEIGHT + momenta_per_weight(config))
    tensors_in_memory += len(pairs)  # φ after half of the steps
    return FLOAT32_BYTES * weights * tensors_in_memory


def bytes_of_moments(
    source_width: int, target_width: int, pairs: Sequence[LayerPair], maps: int = 0
) -> float:
    """Return the bytes of the second moments of states, and of maps that are computed from them.

    Moments are d² numbers for each layer of the source, e² for each of the target and d e for each
    layer pair, all of them for each half of the text, in float64.

    Args:
        source_width, target_width: The widths d and e.
        pairs: The layer pairs.
        maps: How many maps of each layer pair there are, of d e numbers each.
    """
    source_layers = {layer for layer, _ in pairs}
    target_layers = {layer for _, layer in pairs}
    numbers_within = len(source_layers) * source_width**2 + len(target_layers) * target_width**2
    numbers_across = len(pairs) * source_width * target_width
    # 2: the two halves of the text.
    return FLOAT64_BYTES * (2 * numbers_within + (2 + maps) * numbers_across)


def _check_memory(
    config: StitchConfig,
    source_width: int,
    target_width: int,
    pairs: Sequence[LayerPair],
    budget: Budget,
) -> None:
    """Check that stitches in training, and the moments of states, fit into memory.

    Args:
        config: The map φ and its training.
        source_width, target_width: The widths of the models.
        pairs: The layer pairs.
        budget: The memory that may be used.

    Raises:
        ResourceError: They do not fit.
    """
    check_memory(
        f"stitches of {len(pairs)} layer pairs need",
        bytes_trained(config, source_width, target_width, pairs),
        budget,
        f"choose fewer layers, or {named_setting('stitch', 'low_rank')}",
    )
    if config.has_closed_forms:
        maps = 1  # φ itself, or the map that its training starts from
        remedy = "choose fewer layers"
        if config.controls:
            maps = 3  # the controls: least squares, Procrustes and a constant alone
            remedy += f", {named_setting('stitch.controls', False)}"
        check_memory(
            f"closed forms of {len(pairs)} layer pairs need",
            bytes_of_moments(source_width, target_width, pairs, maps),
            budget,
            remedy,
        )
