"""The setting of a stitching job: two models, their layer pairs, the text that both read, and its statistics."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from thinkalike.config import DataConfig, StitchConfig, TrainConfig, pairs_of_layers
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus, SourceText
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError
from thinkalike.evaluation.language import rows_at_once
from thinkalike.evaluation.likeness import TOKENS, Likeness, in_parts, likeness_of
from thinkalike.evaluation.maps import ResidualSums, residual_sums, rows_of_moments, state_moments
from thinkalike.evaluation.stitches import Maps, Reader, document_sums, report_share
from thinkalike.evaluation.token_means import MOST_TOKENS, BigramMeans
from thinkalike.instruments.stitching.costs import check_room
from thinkalike.measures import bias_only, least_squares, procrustes, reduced_rank
from thinkalike.measures.closed_forms import AffineMap, BothDirections, LayerPair, Moments
from thinkalike.memory import AT_ONCE, GAPS, MARGIN, Budget, in_use
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_models
from thinkalike.models.tokenizers import check_alignable
from thinkalike.processes import own_device
from thinkalike.stitches.stitch import Stitch

log = logging.getLogger(__name__)

CONTROL_TOKENS = 2**16  # that the closed forms of controls and starts are fitted on


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
    known: Moments | None = None  # `moments`, where another pass has gathered them

    @classmethod
    def of(cls, config: TrainConfig) -> Setting:
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
        return cls(stitch, config.seed, source, target, pairs, corpus, memory)

    @property
    def is_fitted_in_parts(self) -> bool:
        """Whether closed forms are controls and starts alone."""
        return self.config.trained or self.config.kind == "identity"

    @property
    def equal_widths(self) -> bool:
        return self.source.d_model == self.target.d_model

    @property
    def budget(self) -> Budget:
        place = self.target.device
        limit = (in_use(place) + GAPS * AT_ONCE) / MARGIN if place.type == "cpu" else None
        return Budget.of(place, self.memory or limit)

    def columns(self) -> dict[str, Any]:
        """Return the columns of a table that name models and layers, with a row per layer pair."""
        names = {"source": self.source.name, "target": self.target.name}
        layers = zip(("source_layer", "target_layer"), zip(*self.layer_pairs, strict=True), strict=True)
        return names | {name: list(own) for name, own in layers}

    def identity(self) -> Maps:
        return [Stitch("identity", self.source.d_model, self.target.d_model)] * len(self.layer_pairs)

    @cached_property
    def moments(self) -> Moments:
        """Statistics of both models' states for closed forms.

        They are of all rows to fit on if φ itself is a closed form, and of `CONTROL_TOKENS` for controls and starts.
        """
        if self.known:
            return self.known
        fit, rows = self.corpus.fit, self.corpus.fit.tokens
        if self.is_fitted_in_parts:
            rows = rows[: CONTROL_TOKENS // fit.context]
        models = self.source, self.target, self.layer_pairs
        return state_moments(*models, rows, self._rows_at_once(rows), layout=fit.layout)

    def _rows_at_once(self, rows: Tensor) -> int:
        most, layout = rows_at_once(self.corpus), self.corpus.fit.layout
        return rows_of_moments(self.source, self.target, self.layer_pairs, rows, most, self.budget, layout)

    def residuals(self, maps: Sequence[BothDirections]) -> ResidualSums:
        """Return what maps that were fitted on `moments` leave unexplained of the report's states."""
        rows = self.corpus.report
        models = self.source, self.target, self.layer_pairs
        return residual_sums(*models, maps, self.moments, rows, self._rows_at_once(rows.tokens))

    def closed_forms(self, kind: str, *, bias: bool = True) -> list[AffineMap]:
        """Return a closed form of every layer pair, fitted with or without a constant."""
        config, fits = self.config, [(self.moments, pair) for pair in self.layer_pairs]
        if kind == "least_squares":
            return [least_squares(*fit, config.ridge, bias) for fit in fits]
        if kind == "reduced_rank":
            return [reduced_rank(*fit, config.rank, config.ridge, bias) for fit in fits]
        return [procrustes(*fit, bias=bias) if kind == "procrustes" else bias_only(*fit) for fit in fits]

    @cached_property
    def starts(self) -> list[AffineMap]:
        """The maps that training starts from; those of stitch=linear are fitted without a constant."""
        return self.closed_forms(self.config.init, bias=self.config.kind != "linear")

    def reversed(self, data: DataConfig) -> Setting:
        """Return the same from the target to the source."""
        config, pairs = self.config, [(depth, layer) for layer, depth in self.layer_pairs]
        corpus = shared_text(data, self.target, self.source, max(config.steps * config.tokens_per_step, 1))
        return replace(self, source=self.target, target=self.source, layer_pairs=pairs, corpus=corpus)

    def likeness(self) -> tuple[Likeness, Setting, BigramMeans]:
        """Return the similarity of the states of both models at every layer pair, and what the same pass gathers.

        That is this setting with its `moments`, and the target's mean states of tokens and of pairs of tokens. Where
        the states of all layer pairs do not fit into memory at once, text is read again for the next of them, and apart
        for the rest.
        """
        fit, report, depths = self.corpus.fit, self.corpus.report, sorted({depth for _, depth in self.layer_pairs})
        tokens, moments = fit.layout.target_tokens(fit.tokens), Moments(self.layer_pairs)
        means = BigramMeans(self.target, depths, tokens[:0], report.layout.target_tokens(report.tokens))
        read = 0

        def seen(rows: Tensor, mine: dict[int, Tensor], theirs: dict[int, Tensor]) -> None:
            nonlocal read
            read += len(rows)
            moments.update(*({layer: each.flatten(0, 1) for layer, each in own.items()} for own in (mine, theirs)))
            means.update(fit.layout.target_tokens(rows), [theirs[depth] for depth in depths])

        longest = min(max(fit.tokens.numel(), report.documents.numel()), TOKENS)
        parts = in_parts(self.layer_pairs, self.source.d_model, self.target.d_model, longest, self.budget.room)
        given = [seen] if len(parts) == 1 else []
        alike = Likeness.joined([likeness_of(self.source, self.target, part, fit, report, *given) for part in parts])
        means.read(self.target, tokens[read : max(read, MOST_TOKENS // fit.context)])
        return alike, replace(self, known=moments) if read and self.is_fitted_in_parts else self, means

    def sums(self, maps: Mapping[str, Maps], readers: Mapping[str, Reader] | None = None) -> dict[str, Tensor]:
        """Return losses by document of all maps on the report's rows, see `document_sums`."""
        rows, readers = self.corpus.report, readers or {}
        models, layout = (self.source, self.target, self.layer_pairs), rows.layout
        most = rows_at_once(self.corpus)
        at_once = report_share(*models, rows.tokens, most, self.budget, layout, others=bool(readers))
        return document_sums(*models, maps, rows.tokens, rows.documents, *at_once, layout=layout, readers=readers)


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
