"""What a job of autoencoders works with: the model, its text, and where each autoencoder begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from thinkalike.config import SAEConfig, TrainConfig
from thinkalike.data import Corpus, TokenRows, read_corpus
from thinkalike.errors import ConfigError
from thinkalike.evaluation import SiteStates, site_states, states_after
from thinkalike.instruments.sae.source import check_source, check_tokenizers, maps_of_stitch, saes_of, source_model
from thinkalike.measures import (
    AffineMap,
    PairMoments,
    SparseAutoencoder,
    both_directions,
    carried,
    in_own_units,
    with_fitted_decoder,
)
from thinkalike.models import FrozenModel, load_models
from thinkalike.store import Result
from thinkalike.training import StepBatches


@dataclass(frozen=True)
class Setting:
    """What a job works with.

    Attributes:
        opening: rows that training reads early, from which states are scaled, and maps and decoders are fitted.
        source: the model whose autoencoders are carried over, and None where there is none.
        made: the result that has these autoencoders.
    """

    config: SAEConfig
    seed: int
    model: FrozenModel
    corpus: Corpus
    opening: Tensor
    source: FrozenModel | None = None
    made: Result | None = None

    @classmethod
    def of(cls, config: TrainConfig, inputs: Mapping[str, Any]) -> Setting:
        """Load models and text, and check that they go together.

        Raises:
            ConfigError: the layer does not exist.
            ModelError: a model cannot be had, predicts no next token, or has another tokenizer than the source.
            DataError: there is too little text.
        """
        sae, made = config.sae, inputs.get("source")
        others = [source_model(config)] if made else []
        model, *sources = load_models(config.model, *others)
        source = sources[0] if made else None
        model.check_layers([sae.layer])
        if made and source:
            check_source(made, source)
            check_tokenizers(source, model)
        context = min(each.context for each in (model, *sources))
        needed = max(sae.tokens, sae.map_tokens)
        corpus = read_corpus(config.data, model.tokenizer, context, bos=model.bos_each_row, fit_tokens=needed)
        _check_rows(sae, corpus)
        opening = StepBatches(corpus.fit.tokens, sae.map_tokens, 1, 0)[0]
        return cls(sae, config.seed, model, corpus, opening, source, made)

    @property
    def seeds(self) -> range:
        """The seeds of the job."""
        return range(self.seed, self.seed + self.config.seeds)

    @cached_property
    def states(self) -> Tensor:
        """The model's states of the opening, (n, d)."""
        return states_after(self.model, self.config.layer, self.opening, self.config.skip_first_tokens)

    @cached_property
    def mean(self) -> Tensor:
        """The mean of these states."""
        return self.states.mean(0)

    @cached_property
    def scale(self) -> float:
        """The root of their mean variance."""
        return float((self.states - self.mean).square().mean().sqrt())

    @cached_property
    def maps(self) -> tuple[AffineMap, AffineMap]:
        """The maps from the source's site to the model's, and back: those of a stitch, or of least squares."""
        assert self.source
        assert self.made
        layer = int(self.made.config["sae"]["layer"])
        if self.config.stitch:
            return maps_of_stitch(self.config.stitch, (self.source, layer), (self.model, self.config.layer))
        moments = PairMoments()
        theirs = states_after(self.source, layer, self.opening, self.config.skip_first_tokens)
        moments.update(theirs.to(self.states.device), self.states)
        return both_directions(moments)

    @cached_property
    def report(self) -> SiteStates:
        """States of the report that is looked at during training: rows from all of it, `sae.curve_tokens` in all."""
        rows = self.corpus.report
        every = max(-(-rows.tokens.numel() // self.config.curve_tokens), 1)
        some = TokenRows(rows.tokens[::every], rows.documents[::every])
        return site_states(self.model, self.config.layer, some, self.config.skip_first_tokens)

    def begins(self, start: str, seed: int) -> SparseAutoencoder:
        """Return where an autoencoder begins, in the model's own units."""
        if start == "transferred":
            known = self._known
            return carried(known[seed % len(known)].to(self.mean.device), *self.maps)
        sae, d = self.config, self.model.d_model
        random = SparseAutoencoder.random(d, sae.width, sae.active, seed).to(self.mean.device)
        random = in_own_units(random, self.mean, self.scale)
        return with_fitted_decoder(random, self.states) if start == "least_squares" else random

    @cached_property
    def _known(self) -> list[SparseAutoencoder]:
        assert self.made
        return saes_of(self.made)


def _check_rows(config: SAEConfig, corpus: Corpus) -> None:
    """Refuse rows of which nothing is left, and buffers that hold none."""
    context = corpus.fit.context
    if config.skip_first_tokens >= context:
        raise ConfigError(
            f"sae.skip_first_tokens={config.skip_first_tokens} leaves nothing of rows of {context} tokens"
        )
    for key in ("map_tokens", "buffer"):
        size = getattr(config, key)
        if size < context:
            name = "sae.map_tokens" if key == "map_tokens" else "sae.tokens_per_step times sae.steps_per_buffer"
            raise ConfigError(
                f"{name} is {size}, less than one row of {context} tokens; raise it, or lower data.context"
            )
