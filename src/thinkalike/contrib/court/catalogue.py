"""The sources of a court: their names, their similarity to the target, and how they are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from thinkalike.contrib.court.bags_and_shifts import (
    shifted,
    token_and_bag,
)
from thinkalike.contrib.court.changed_states import (
    beside_untrained,
    components_between,
    distorted,
    projected_log_probabilities,
    rounded_states,
    superset,
    with_noisy_states,
    without_small_direction,
)
from thinkalike.contrib.court.changed_weights import (
    REVERTED_SHARE,
    SHORT_TRAINING,
    TUNING,
    WEIGHT_NOISE,
    embedding_states,
    other_layer,
    reverted,
    sibling,
    states_after_change,
    token_alone,
    trained_further,
    with_noisy_weights,
)
from thinkalike.contrib.court.invertible_maps import (
    CONDITION,
    rescaled,
    rotated,
    through_affine,
    whitened,
)
from thinkalike.contrib.court.leaks import (
    half_of_the_tokens,
    half_of_the_variance,
    next_token,
    with_next_token,
)
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import CachedStates, Source, StateFunction
from thinkalike.contrib.court.token_means import (
    NGRAM_CODES,
    TrigramMeans,
    gaussian,
    mean_states_of_ngrams,
    mixture_with_other_context,
    other_context,
    position_means,
    random_vector_of_ngram,
    reweighted,
    with_means_of_other_tokens,
)
from thinkalike.evaluation.token_means import BigramMeans, TokenMeans
from thinkalike.models.variants import randomised, untrained_like, untrained_with_embedding


class SourceRecipe(NamedTuple):
    """A source before it is made.

    Attributes:
        name: The name of the source.
        kind: Its similarity to the target, in a word.
        state_function: Returns the function from tokens to the source's states.
    """

    name: str
    kind: str
    state_function: Callable[[Materials], StateFunction]

    def make_source(self, materials: Materials) -> Source:
        """Return the source, which caches the states that it has computed."""
        states = CachedStates(self.state_function(materials))
        return Source(self.name, self.kind, states, materials.target)


def _signed_power(x: torch.Tensor) -> torch.Tensor:
    """Return x to the power of 1.5, with the sign of x."""
    return x * x.abs().sqrt()


SOURCES = (
    SourceRecipe("rotated", "same", rotated),
    SourceRecipe("rescaled and permuted", "same", rescaled),
    SourceRecipe("affine", "same", partial(through_affine, condition=CONDITION)),
    SourceRecipe("affine, condition 1000", "same", partial(through_affine, condition=1000.0)),
    SourceRecipe("whitened", "same", whitened),
    SourceRecipe(
        "noisy weights",
        "near",
        states_after_change(partial(with_noisy_weights, share=WEIGHT_NOISE), "noisy weights"),
    ),
    SourceRecipe(
        "partly untrained weights",
        "near",
        states_after_change(partial(reverted, share=REVERTED_SHARE), "reverted"),
    ),
    SourceRecipe(
        "trained on", "near", partial(trained_further, config=SHORT_TRAINING, name="trained on")
    ),
    SourceRecipe("tuned", "near", partial(trained_further, config=TUNING, name="tuned")),
    SourceRecipe("noisy states", "near", partial(with_noisy_states, share=0.1)),
    SourceRecipe("noise of 2 %", "near", partial(with_noisy_states, share=0.02)),
    SourceRecipe("noise of 30 %", "near", partial(with_noisy_states, share=0.3)),
    SourceRecipe("6 bits", "near", partial(rounded_states, bits=6)),
    *(
        SourceRecipe(f"{bits} bits", "distorted", partial(rounded_states, bits=bits))
        for bits in (3, 2)
    ),
    SourceRecipe("power 1.5", "distorted", partial(distorted, function=_signed_power)),
    SourceRecipe("tanh", "distorted", partial(distorted, function=torch.tanh)),
    SourceRecipe("log-probabilities", "answers", projected_log_probabilities),
    SourceRecipe("top components", "part", partial(components_between, first=0.0, last=1 / 2)),
    SourceRecipe(
        "top 9/16 of the components", "part", partial(components_between, first=0.0, last=9 / 16)
    ),
    SourceRecipe(
        "top 3/4 of the components", "part", partial(components_between, first=0.0, last=3 / 4)
    ),
    SourceRecipe(
        "all but the top tenth", "part", partial(components_between, first=1 / 10, last=1.0)
    ),
    SourceRecipe("without a small direction", "part", without_small_direction),
    SourceRecipe(
        "less the token mean", "scaled", partial(reweighted, token_weight=0.0, rest_weight=1.0)
    ),
    SourceRecipe(
        "a tenth of the departure from the token mean",
        "scaled",
        partial(reweighted, token_weight=1.0, rest_weight=0.1),
    ),
    SourceRecipe("other tokens' means", "wrong tokens", with_means_of_other_tokens),
    SourceRecipe("superset", "superset", superset),
    SourceRecipe("beside a stranger", "superset", partial(beside_untrained, share=1.0)),
    SourceRecipe("half own, half stranger", "mixture", partial(beside_untrained, share=1 / 2)),
    SourceRecipe("token mean", "token", partial(mean_states_of_ngrams, kind=TokenMeans)),
    SourceRecipe("bigram mean", "n-gram", partial(mean_states_of_ngrams, kind=BigramMeans)),
    SourceRecipe("trigram mean", "n-gram", partial(mean_states_of_ngrams, kind=TrigramMeans)),
    *(
        SourceRecipe(f"{name} code", "token", partial(random_vector_of_ngram, ngram=name))
        for name in NGRAM_CODES
    ),
    SourceRecipe("other context", "token", other_context),
    SourceRecipe("Gaussian given the token", "token", gaussian),
    SourceRecipe("position mean", "position", partial(position_means, token_weight=0.0)),
    SourceRecipe(
        "token and position means", "position", partial(position_means, token_weight=1.0)
    ),
    SourceRecipe(
        "token and position means, noisy",
        "position",
        partial(position_means, token_weight=1.0, noise_share=1.0),
    ),
    SourceRecipe("embedding", "position", embedding_states),
    *(
        SourceRecipe(
            f"bag of the last {length}", "bag", partial(token_and_bag, bag_length=float(length))
        )
        for length in (4, 8, 32)
    ),
    SourceRecipe("bag of all", "bag", partial(token_and_bag, bag_length=math.inf)),
    SourceRecipe(
        "bag of the last 8, random codes",
        "bag",
        partial(token_and_bag, bag_length=8.0, kind="random"),
    ),
    SourceRecipe("state of the last token", "delay", partial(shifted, steps=-1)),
    SourceRecipe("state of the next token", "leak", partial(shifted, steps=1)),
    SourceRecipe("next token", "leak", next_token),
    SourceRecipe("next token, half of the tokens", "leak", half_of_the_tokens),
    SourceRecipe("next token, half of the variance", "leak", half_of_the_variance),
    SourceRecipe("own and a tenth of the next token", "leak", partial(with_next_token, share=0.1)),
    SourceRecipe(
        "own and three tenths of the next token", "leak", partial(with_next_token, share=0.3)
    ),
    SourceRecipe(
        "own and a tenth of the next token's code",
        "leak",
        partial(with_next_token, share=0.1, kind="random"),
    ),
    SourceRecipe("fresh weights", "untrained", states_after_change(untrained_like, "fresh")),
    SourceRecipe(
        "fresh weights, own embedding",
        "untrained",
        states_after_change(untrained_with_embedding, "fresh"),
    ),
    SourceRecipe("redrawn matrices", "untrained", states_after_change(randomised, "redrawn")),
    SourceRecipe("token alone", "shortcut", token_alone),
    *(
        SourceRecipe(
            f"{share} % own", "dose", partial(mixture_with_other_context, share=share / 100)
        )
        for share in (0, 20, 40, 60, 80, 100)
    ),
)
# Sources that are other layers of the target, by how many blocks later they are.
OTHER_LAYERS = {
    "two layers before": -2,
    "layer before": -1,
    "layer after": 1,
    "two layers after": 2,
}


def source_recipes(materials: Materials) -> list[SourceRecipe]:
    """Return the recipes of all sources that can be made from a target model.

    A source is a function from tokens to states whose similarity to the target is known; its kind
    says how it is similar. The recipes are those of `SOURCES`, then nearby layers of the target
    (kind "layer"), as far as it has them, and separately trained models (kind "real").
    """
    recipes = list(SOURCES)
    for name, steps in OTHER_LAYERS.items():  # steps: how many blocks later (negative: earlier)
        has_layer = 0 <= materials.layer + steps < materials.target.n_layers
        if has_layer:
            recipes.append(SourceRecipe(name, "layer", partial(other_layer, steps=steps)))
    for name in materials.siblings:
        recipes.append(SourceRecipe(name, "real", partial(sibling, name=name)))
    return recipes
