"""Where a transferred start comes from: the autoencoders of another model, in a result of task=sae."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from thinkalike.config import LoggerConfig, ModelConfig, model_named, options
from thinkalike.contrib.sae.config import SAEConfig, SAEJob
from thinkalike.contrib.sae.measures import SparseAutoencoder, carried, in_own_units, with_fitted_decoder
from thinkalike.contrib.sae.saelens import load_sae
from thinkalike.contrib.sae.training import SiteStates, states_after
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus
from thinkalike.errors import ConfigError, ModelError
from thinkalike.instruments import instrument_of, run_job
from thinkalike.job.planning import is_stored
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.moments import Moments
from thinkalike.measures.round_trips import both_directions
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_models
from thinkalike.store import Result, open_result
from thinkalike.training.recipe import whole_rows
from thinkalike.training.run import StepData


def source_model(config: SAEJob) -> ModelConfig:
    """Return the model whose autoencoders are carried over; nothing is trained."""
    name = str(config.sae.source)
    if name in options("model"):
        return model_named(name, {"dtype": config.model.dtype, "device": config.model.device})
    known, kept = _result(name).config["model"], {item.name for item in fields(ModelConfig)}
    return replace(ModelConfig(**{key: known[key] for key in kept & {*known}}), device=config.model.device)


def source_jobs(config: SAEJob) -> list[SAEJob]:
    """Return the job that makes the autoencoders of a source that is a model, alone in a list."""
    if config.sae.source not in options("model"):
        return []
    layer = config.sae.layer if config.sae.source_layer is None else config.sae.source_layer
    none: dict[str, Any] = {"source": None, "source_layer": None}
    plain = replace(config.sae, layer=layer, start="random", beside=[], lr_multiples=[], **none)
    return [replace(config, model=source_model(config), sae=plain, logger=LoggerConfig(kind="none"))]


def source_result(config: SAEJob) -> Result:
    """Return the result that `sae.source` names; that of a model is made by the same recipe where the store lacks it.

    A result of another kind, layer or size is a ConfigError.
    """
    name, own = str(config.sae.source), config.sae
    if jobs := source_jobs(config):
        (job,) = jobs
        if not is_stored(instrument_of(job), job):  # a source that is of no use is not trained
            check_same_tokenizer(*load_models(job.model, config.model))
        return run_job(job, shown=False)
    made = _result(name)
    shared = {"layer": own.source_layer, "width": own.width, "activation": own.activation, "k": own.active}
    for key, asked in shared.items():
        there = made.config["sae"][key]
        if asked not in (None, there):
            raise ConfigError(f"sae.source={name} has sae.{key}={there}, not {asked}; take that, or another source")
    return made


def _result(name: str) -> Result:
    made = open_result(name)
    if made.kind != "sae":
        raise ConfigError(f"sae.source={name} is a result of {made.kind}; give one of task=sae, or a model")
    return made


def seed_folder(seed: int) -> str:
    """Return where in a result the autoencoder of a seed is, counted from 0: the first is in the folder itself."""
    return f"seed-{seed}" if seed else "."


def check_source(made: Result, model: FrozenModel) -> None:
    """Refuse a model whose weights are not those that a result's autoencoders are of."""
    found, stated = model.fingerprint(), made.provenance["models"][0]["weights"]
    if found != stated:
        raise ModelError(f"{made.folder} holds autoencoders of {model.name} with the weights {stated}, not {found}")


@dataclass(frozen=True)
class Setting:
    """What a job works with."""

    config: SAEConfig
    seed: int
    model: FrozenModel
    corpus: Corpus
    opening: Tensor  # rows that training reads early, from which states are scaled, and maps and decoders are fitted
    source: FrozenModel | None = None  # the model whose autoencoders are carried over, or None
    made: Result | None = None  # the result that has these autoencoders

    @classmethod
    def of(cls, config: SAEJob, inputs: Mapping[str, Any]) -> Setting:
        """Load models and text, and check that they go together."""
        sae, made = config.sae, inputs.get("source")
        others = [source_model(config)] if made else []
        model, *sources = load_models(config.model, *others)
        source = sources[0] if made else None
        model.check_layers([sae.layer])
        if made and source:
            check_source(made, source)
            check_same_tokenizer(source, model)
        context = min(each.context for each in (model, *sources))
        needed = max(sae.tokens, sae.map_tokens)
        corpus = read_corpus(config.data, model.tokenizer, context, bos=model.bos_each_row, fit_tokens=needed)
        opening = StepData(corpus.fit.tokens, sae.map_tokens, 1, 0, setting="sae.map_tokens").batch(0)
        return cls(sae, config.seed, model, corpus, opening, source, made)

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.config.seeds)

    @property
    def tokens_seen(self) -> list[int]:
        """How many tokens were read before each look; those of a buffer are shared by several steps."""
        tokens_in_buffer = whole_rows(self.config.buffer, self.corpus.fit.context)
        return [look * tokens_in_buffer // self.config.steps_per_buffer for look in self.config.looks]

    @cached_property
    def known(self) -> list[SparseAutoencoder]:
        """The autoencoders that are carried over, one for each seed of their job."""
        assert self.made
        seeds = range(self.made.config["sae"]["seeds"])
        return [load_sae(self.made.folder / seed_folder(seed)) for seed in seeds]

    @cached_property
    def states(self) -> Tensor:
        """The model's states of the opening, (n, d)."""
        return states_after(self.model, self.config.layer, self.opening, self.config.skip_first_tokens)

    @cached_property
    def mean(self) -> Tensor:
        return self.states.mean(0)

    @cached_property
    def scale(self) -> float:
        return float((self.states - self.mean).square().mean().sqrt())

    @cached_property
    def maps(self) -> tuple[AffineMap, AffineMap]:
        """The maps of least squares from the source's site to the model's, and back."""
        assert self.source
        assert self.made
        moments, layer = Moments([(0, 0)]), int(self.made.config["sae"]["layer"])
        theirs = states_after(self.source, layer, self.opening, self.config.skip_first_tokens)
        moments.update([theirs.to(self.states.device)], [self.states])
        return both_directions(moments.of((0, 0)))

    @cached_property
    def report(self) -> SiteStates:
        """States of the report that is looked at during training: rows from all of it, `sae.curve_tokens` in all."""
        rows = self.corpus.report
        every = max(-(-rows.tokens.numel() // self.config.curve_tokens), 1)
        skip = self.config.skip_first_tokens
        states = states_after(self.model, self.config.layer, rows.tokens[::every], skip)
        return SiteStates(states, rows.documents[::every, skip:].flatten())

    def begins(self, start: str, seed: int) -> SparseAutoencoder:
        """Return where an autoencoder begins, in the model's own units."""
        if start == "transferred":
            return carried(self.known[seed % len(self.known)].to(self.mean.device), *self.maps)
        sae, d = self.config, self.model.d_model
        random = SparseAutoencoder.random(d, sae.width, sae.active, seed).to(self.mean.device)
        random = in_own_units(random, self.mean, self.scale)
        return with_fitted_decoder(random, self.states) if start == "least_squares" else random
