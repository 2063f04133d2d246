"""What a stitching job works with: two models, the text that both read, and what closed forms need; checked first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from thinkalike.config import DataConfig, StitchConfig, TrainConfig, TrainerConfig, pairs_of_layers
from thinkalike.data import Corpus
from thinkalike.errors import ConfigError
from thinkalike.evaluation import (
    LayerPair,
    Likeness,
    Maps,
    Reader,
    document_sums,
    likeness_of,
    report_share,
    rows_at_once,
    rows_of_moments,
    state_moments,
)
from thinkalike.instruments.stitching.shared import check_stitchable, shared_text
from thinkalike.job import check_memory, check_time
from thinkalike.measures import AffineMap, Moments, Stitch, bias_only, least_squares, procrustes, reduced_rank
from thinkalike.memory import Budget
from thinkalike.models import FrozenModel, load_models
from thinkalike.processes import check_processes, own_device
from thinkalike.training import momenta

CONTROL_TOKENS = 2**18  # that the closed forms of controls and starts are fitted on


@dataclass(frozen=True)
class Setting:
    """What a job works with: two models, the layer pairs, text, and statistics for closed forms if it needs any."""

    config: StitchConfig
    seed: int
    source: FrozenModel
    target: FrozenModel
    layer_pairs: Sequence[LayerPair]
    corpus: Corpus
    moments: Moments | None
    memory: float | None = None  # the most bytes that the user allows

    @classmethod
    def of(cls, config: TrainConfig) -> Setting:
        """Load models and text, and check that they go together.

        Raises:
            ConfigError: the kind of map does not fit the models' widths, or layers do not exist.
            ModelError: a model cannot be had, or the tokenizers differ so that tokens cannot be aligned.
            DataError: there is too little text.
        """
        both = (config.model, config.target)
        source, target = load_models(*(replace(e, device=own_device(e.device, config.trainer)) for e in both))
        if config.stitch.both and source is target:
            raise ConfigError(f"stitch.both=true needs two models, and {source.name} is source and target")
        _check_widths(config.stitch, source, target)
        layer_pairs = pairs_of_layers(config.layers, source.n_layers, target.n_layers)
        needed = config.stitch.steps * config.stitch.tokens_per_step
        if config.stitch.trained:
            _check_feasible(config.stitch, config.trainer, source, target, layer_pairs)
        corpus = shared_text(config.data, source, target, max(needed, 1))
        memory = config.trainer.memory_bytes
        moments = moments_of(config.stitch, source, target, layer_pairs, corpus, memory)
        return cls(config.stitch, config.seed, source, target, layer_pairs, corpus, moments, memory)

    @property
    def equal_widths(self) -> bool:
        return self.source.d_model == self.target.d_model

    def identity(self) -> Maps:
        return [Stitch("identity", self.source.d_model, self.target.d_model)] * len(self.layer_pairs)

    def closed_forms(self, kind: str, *, bias: bool = True) -> list[AffineMap]:
        """Return a closed form of every layer pair, fitted with or without a constant."""
        if self.moments is None:
            raise ValueError(f"no statistics were gathered for the closed form {kind}")
        return [_closed_form(kind, self.moments, pair, self.config, bias) for pair in self.layer_pairs]

    @cached_property
    def starts(self) -> list[AffineMap]:
        """Where training starts at every layer pair; a map that has no constant is fitted without one."""
        return self.closed_forms(self.config.init, bias=self.config.kind != "linear")

    def reading(self, source: FrozenModel) -> Setting:
        """Return the same with another source that reads the same tokens, and the statistics of its states."""
        moments = moments_of(self.config, source, self.target, self.layer_pairs, self.corpus, self.memory)
        return replace(self, source=source, moments=moments)

    def reversed(self, data: DataConfig) -> Setting:
        """Return the same from the target to the source."""
        config, pairs = self.config, [(depth, layer) for layer, depth in self.layer_pairs]
        corpus = shared_text(data, self.target, self.source, max(config.steps * config.tokens_per_step, 1))
        back = replace(self, source=self.target, target=self.source, layer_pairs=pairs, corpus=corpus, moments=None)
        return back.reading(back.source)

    def likeness(self) -> Likeness:
        """Return how alike the states of both models are at every layer pair, whatever a stitch does with them."""
        rows, budget = self.corpus, Budget.of(self.target.device, self.memory)
        return likeness_of(self.source, self.target, self.layer_pairs, rows.fit, rows.report, budget)

    def sums(self, maps: Mapping[str, Maps], readers: Mapping[str, Reader] | None = None) -> dict[str, Tensor]:
        """Return losses by document of all maps on the report's rows, see `document_sums`."""
        rows, readers = self.corpus.report, readers or {}
        models, budget = (self.source, self.target, self.layer_pairs), Budget.of(self.target.device, self.memory)
        most, layout = rows_at_once(self.corpus), rows.layout
        share = report_share(*models, rows.tokens, most, budget, layout, others=bool(readers))
        at_once = share.rows, share.pairs
        return document_sums(*models, maps, rows.tokens, rows.documents, *at_once, layout=layout, readers=readers)


def foresee(config: TrainConfig) -> None:
    """Refuse what is seen without any weights: processes, and what `check_stitchable` refuses."""
    check_processes(config.trainer, own_device(config.target.device, config.trainer))
    check_stitchable(config.model, config.target, config.layers, "task=stitch")


def _check_feasible(
    config: StitchConfig,
    trainer: TrainerConfig,
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
) -> None:
    """Refuse what no machine can train, in however small parts: weights, gradients and momenta of φ, and the pass.

    What one part takes is measured when training begins.
    """
    size, budget = config.tokens_per_step, Budget.of(target.device, trainer.memory_bytes)
    rank = config.rank if config.kind == "low_rank" else 0
    widths = source.d_model, target.d_model
    weights = rank * sum(widths) or (config.kind != "identity") * math.prod(widths)
    fits = len(layer_pairs) * (1 + len(config.rates) + config.controls)
    stitches = fits + config.floor * len({depth for _, depth in layer_pairs})
    kept = 4.0 * weights * (stitches * (2 + momenta(config)) + len(layer_pairs))
    check_memory(f"{stitches} stitches need", kept, budget, "choose fewer layers, or stitch=low_rank")
    tokens = 12.0 * size  # as they are read, and as they are given to the models
    check_memory(f"stitch.tokens_per_step={size} needs", kept + tokens, budget)
    operations = 2.0 * config.steps * size * target.parameters()[1]
    check_time(f"stitch.steps={config.steps} of stitch.tokens_per_step={size} for {stitches} stitches", operations)


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


def moments_of(
    config: StitchConfig,
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    corpus: Corpus,
    memory: float | None,
) -> Moments | None:
    """Return statistics for the closed forms that this job needs, if any."""
    closed = not config.trained and config.kind != "identity"
    if not (closed or config.controls or config.init != "identity"):
        return None
    rows, fit = corpus.fit.tokens, corpus.fit
    rows = rows if closed else rows[: CONTROL_TOKENS // fit.context]
    budget = Budget.of(target.device, memory)
    _check_closed_forms(config, source, target, layer_pairs, budget)
    batch = rows_of_moments(source, target, rows, rows_at_once(corpus), budget, fit.layout)
    return state_moments(source, target, layer_pairs, rows, batch, layout=fit.layout)


def _check_closed_forms(
    config: StitchConfig, source: FrozenModel, target: FrozenModel, layer_pairs: Sequence[LayerPair], budget: Budget
) -> None:
    """Refuse statistics and maps, all in float64, that do not fit."""
    d, e, pairs = source.d_model, target.d_model, len(layer_pairs)
    within = sum(len({pair[side] for pair in layer_pairs}) * width**2 for side, width in enumerate((d, e)))
    kinds = 3 if config.controls else 1
    remedy = "choose fewer layers" + (", stitch.controls=false" if config.controls else "")
    memory = 8.0 * (within + (1 + kinds) * pairs * d * e)
    check_memory(f"closed forms of {pairs} layer pairs need", memory, budget, remedy)


def _closed_form(kind: str, moments: Moments, pair: LayerPair, config: StitchConfig, bias: bool) -> AffineMap:
    if kind == "least_squares":
        return least_squares(moments, pair, config.ridge, bias)
    if kind == "reduced_rank":
        return reduced_rank(moments, pair, config.rank, config.ridge, bias)
    return procrustes(moments, pair, bias=bias) if kind == "procrustes" else bias_only(moments, pair)
