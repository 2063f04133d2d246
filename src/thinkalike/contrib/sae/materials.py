"""What a job of task=sae works with: the models, the text, states of the site, and the starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.sae.autoencoder import SparseAutoencoder
from thinkalike.contrib.sae.carrying import (
    for_original_states,
    mapped_autoencoder,
    with_fitted_decoder,
)
from thinkalike.contrib.sae.config import SAEConfig, SAEJob
from thinkalike.contrib.sae.saelens import load_sae
from thinkalike.contrib.sae.site_states import SiteStates, states_after
from thinkalike.contrib.sae.source import check_source, seed_folder, source_model
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus
from thinkalike.measures.moments import Moments
from thinkalike.measures.round_trips import BothDirections, both_directions
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_models
from thinkalike.store import Result
from thinkalike.training.data import StepData
from thinkalike.training.recipe import whole_rows

LAYER_PAIR = (0, 0)  # the only one of the moments here


@dataclass(frozen=True)
class SAESource:
    """The source model, whose autoencoders are mapped to another model, and their result."""

    model: FrozenModel
    result: Result

    @property
    def layer(self) -> int:
        """The layer whose states the autoencoders reconstruct."""
        return int(self.result.config["sae"]["layer"])

    @cached_property
    def saes(self) -> list[SparseAutoencoder]:
        """One autoencoder for each seed of the source's job."""
        n_seeds = self.result.config["sae"]["seeds"]
        return [load_sae(self.result.folder / seed_folder(seed)) for seed in range(n_seeds)]


@dataclass(frozen=True)
class SAEMaterials:
    """What a job of task=sae works with.

    Attributes:
        config: The settings of the autoencoders.
        seed: The seed of the first start.
        model: The model whose states are reconstructed.
        corpus: The text.
        first_rows: The rows that training reads first. States are scaled by them, and maps and
            decoders are fitted on them.
        source: Where a transferred start comes from, or None.
    """

    config: SAEConfig
    seed: int
    model: FrozenModel
    corpus: Corpus
    first_rows: Int[Tensor, "rows t"]
    source: SAESource | None = None

    @classmethod
    def of(cls, config: SAEJob, source_result: Result | None) -> SAEMaterials:
        """Load what a job of task=sae needs: models and text; check that they fit together.

        Args:
            config: The configuration of the job.
            source_result: The result with the autoencoders of a source model, which are mapped to
                this model; None: there is no source model.

        Raises:
            ModelError: These autoencoders were trained on different weights of the source model,
                or the tokenizers of both models differ.
        """
        sae = config.sae
        source = None
        if source_result is None:
            (model,) = load_models(config.model)
        else:
            model, loaded_source = load_models(config.model, source_model(config))
            source = SAESource(loaded_source, source_result)
        model.check_layers([sae.layer])
        context = model.context
        if source is not None:
            check_source(source.result, source.model)
            check_same_tokenizer(source.model, model)
            context = min(context, source.model.context)

        corpus = read_corpus(
            config.data,
            model.tokenizer,
            context,
            bos=model.bos_each_row,
            fit_tokens=max(sae.tokens, sae.map_tokens),
        )
        # The rows that training reads first, as a single step of `sae.map_tokens` tokens.
        one_step = StepData(
            corpus.fit.tokens, sae.map_tokens, steps=1, seed=0, setting="sae.map_tokens"
        )
        return cls(sae, config.seed, model, corpus, one_step.batch(0), source)

    @property
    def seeds(self) -> range:
        """The seeds of the autoencoders."""
        return range(self.seed, self.seed + self.config.seeds)

    @property
    def tokens_read(self) -> list[int]:
        """How many tokens were read before each evaluation of the autoencoders during training.

        The model reads a buffer of whole rows of text at once. Its states serve several training
        steps, each of which reads an equal part.
        """
        tokens_in_buffer = whole_rows(self.config.buffer, self.corpus.fit.context)
        steps = self.config.evaluation_steps
        return [step * tokens_in_buffer // self.config.steps_per_buffer for step in steps]

    @cached_property
    def states(self) -> Float[Tensor, "n d"]:
        """The model's states of `first_rows`, without the first tokens of each row."""
        return self._states_of(self.model, self.config.layer, self.first_rows)

    def _states_of(
        self, model: FrozenModel, layer: int, rows: Int[Tensor, "rows t"]
    ) -> Float[Tensor, "n d"]:
        """Return a model's states of rows after a block, without the first tokens of each row."""
        return states_after(model, layer, rows, self.config.skip_first_tokens)

    @cached_property
    def mean(self) -> Float[Tensor, " d"]:
        """The mean of `states`."""
        return self.states.mean(0)

    @cached_property
    def scale(self) -> float:
        """The root of the mean variance of `states` over dimensions."""
        return float((self.states - self.mean).square().mean().sqrt())

    @cached_property
    def evaluation_states(self) -> SiteStates:
        """States on which autoencoders are evaluated during training.

        They are the states of evenly spaced rows of the evaluation text, without the first tokens
        of each row. So many rows are taken that they have `sae.curve_tokens` tokens at most, or
        less than one row more, as rows are taken whole. Each state has the number of its document.
        """
        rows = self.corpus.report  # the evaluation text
        row_step = max(ceil(rows.tokens.numel() / self.config.curve_tokens), 1)
        states = self._states_of(self.model, self.config.layer, rows.tokens[::row_step])
        # The states are without the first tokens of each row.
        documents = rows.documents[::row_step, self.config.skip_first_tokens :]
        return SiteStates(states, documents.flatten())

    def first_autoencoder(self, start: str, seed: int) -> SparseAutoencoder:
        """Return the autoencoder that training starts from, for states that are not standardised.

        Args:
            start: How its weights are made: "random", "least_squares" (random directions with a
                fitted decoder) or "transferred" (mapped from the source model's autoencoder).
            seed: The seed of the random directions, or the number of the source's autoencoder.
        """
        if start == "transferred":
            return self._mapped_source_autoencoder(seed)
        random = SparseAutoencoder.random(
            d=self.model.d_model, f=self.config.width, k=self.config.active, seed=seed
        )
        # The random one is made for standardised states.
        sae = for_original_states(random.to(self.mean.device), self.mean, self.scale)
        if start == "least_squares":
            return with_fitted_decoder(sae, self.states)
        return sae

    def _mapped_source_autoencoder(self, index: int) -> SparseAutoencoder:
        """Return an autoencoder of the source model that takes states of this model.

        It maps them to states of the source, applies the autoencoder, and maps the result back.

        Args:
            index: Which of the source's autoencoders it is. Beyond the last one, counting begins
                anew with the first.
        """
        assert self.source is not None
        saes = self.source.saes
        sae = saes[index % len(saes)].to(self.mean.device)
        maps = self._maps_from_source
        source_to_this_model = maps.phi
        this_model_to_source = maps.psi
        return mapped_autoencoder(sae, to_new=source_to_this_model, from_new=this_model_to_source)

    @cached_property
    def _maps_from_source(self) -> BothDirections:
        """Least-squares maps φ from the source model's states to this model's, and ψ back.

        Both are fitted on the states of `first_rows`, the text that training reads first. They
        exist only if autoencoders of a source model are mapped to this model.
        """
        assert self.source is not None
        source_states = self._states_of(self.source.model, self.source.layer, self.first_rows)
        moments = Moments([LAYER_PAIR])  # sums over tokens, for one layer of each model
        moments.update([source_states.to(self.states.device)], [self.states])
        return both_directions(moments.of(LAYER_PAIR))
