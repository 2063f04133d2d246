"""The sources of a court: their names, their similarity to the target, and how they are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from thinkalike.contrib.court.bags_and_shifts import (
    bag,
    shifted,
)
from thinkalike.contrib.court.changed_states import (
    beside_stranger,
    components,
    distorted,
    log_probabilities,
    rounded,
    superset,
    with_noisy_states,
    without_small_direction,
)
from thinkalike.contrib.court.changed_weights import (
    REVERTED_SHARE,
    SHORT_TRAINING,
    TUNING,
    WEIGHT_NOISE,
    changed,
    other_layer,
    perturbed,
    reverted,
    sibling,
    token_alone,
    trained_on,
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
from thinkalike.contrib.court.source import CachedStates, Source, States
from thinkalike.contrib.court.token_means import (
    NGRAM_CODES,
    TrigramMeans,
    at_position,
    code,
    gaussian,
    means,
    mixture,
    other_context,
    reweighted,
    with_means_of_other_tokens,
)
from thinkalike.evaluation.token_means import BigramMeans, TokenMeans
from thinkalike.models.variants import fresh, randomised, twin


class Entry(NamedTuple):
    """A source before it is made.

    Attributes:
        name: The name of the source.
        kind: Its similarity to the target, in a word.
        make: Returns the source's states.
    """

    name: str
    kind: str
    make: Callable[[Materials], States]

    def made(self, materials: Materials) -> Source:
        """Return the source, which keeps the states that it has computed."""
        states = CachedStates(self.make(materials))
        return Source(self.name, self.kind, states, materials.target)


def _embedding(materials: Materials) -> States:
    """Return the target's states before its first block: layer -1."""
    return other_layer(materials, -1 - materials.layer)


def _signed_power(x: torch.Tensor) -> torch.Tensor:
    """Return x to the power of 1.5, with the sign of x."""
    return x * x.abs().sqrt()


SOURCES = (
    Entry("rotated", "same", rotated),
    Entry("rescaled and permuted", "same", rescaled),
    Entry("affine", "same", partial(through_affine, condition=CONDITION)),
    Entry("affine, condition 1000", "same", partial(through_affine, condition=1000.0)),
    Entry("whitened", "same", whitened),
    Entry(
        "noisy weights", "near", changed(partial(perturbed, share=WEIGHT_NOISE), "noisy weights")
    ),
    Entry(
        "partly untrained weights",
        "near",
        changed(partial(reverted, share=REVERTED_SHARE), "reverted"),
    ),
    Entry("trained on", "near", partial(trained_on, config=SHORT_TRAINING, name="trained on")),
    Entry("tuned", "near", partial(trained_on, config=TUNING, name="tuned")),
    Entry("noisy states", "near", partial(with_noisy_states, share=0.1)),
    Entry("noise of 2 %", "near", partial(with_noisy_states, share=0.02)),
    Entry("noise of 30 %", "near", partial(with_noisy_states, share=0.3)),
    Entry("6 bits", "near", partial(rounded, bits=6)),
    *(Entry(f"{bits} bits", "distorted", partial(rounded, bits=bits)) for bits in (3, 2)),
    Entry("power 1.5", "distorted", partial(distorted, function=_signed_power)),
    Entry("tanh", "distorted", partial(distorted, function=torch.tanh)),
    Entry("log-probabilities", "answers", log_probabilities),
    Entry("top components", "part", partial(components, first=0.0, last=1 / 2)),
    Entry("top 9/16 of the components", "part", partial(components, first=0.0, last=9 / 16)),
    Entry("top 3/4 of the components", "part", partial(components, first=0.0, last=3 / 4)),
    Entry("all but the top tenth", "part", partial(components, first=1 / 10, last=1.0)),
    Entry("without a small direction", "part", without_small_direction),
    Entry("less the token mean", "scaled", partial(reweighted, token=0.0, rest=1.0)),
    Entry(
        "a tenth of the departure from the token mean",
        "scaled",
        partial(reweighted, token=1.0, rest=0.1),
    ),
    Entry("other tokens' means", "wrong tokens", with_means_of_other_tokens),
    Entry("superset", "superset", superset),
    Entry("beside a stranger", "superset", partial(beside_stranger, share=1.0)),
    Entry("half own, half stranger", "mixture", partial(beside_stranger, share=1 / 2)),
    Entry("token mean", "token", partial(means, kind=TokenMeans)),
    Entry("bigram mean", "n-gram", partial(means, kind=BigramMeans)),
    Entry("trigram mean", "n-gram", partial(means, kind=TrigramMeans)),
    *(Entry(f"{name} code", "token", partial(code, of=name)) for name in NGRAM_CODES),
    Entry("other context", "token", other_context),
    Entry("Gaussian given the token", "token", gaussian),
    Entry("position mean", "position", partial(at_position, token=0.0)),
    Entry("token and position means", "position", partial(at_position, token=1.0)),
    Entry(
        "token and position means, noisy", "position", partial(at_position, token=1.0, noise=1.0)
    ),
    Entry("embedding", "position", _embedding),
    *(
        Entry(f"bag of the last {last}", "bag", partial(bag, last=float(last)))
        for last in (4, 8, 32)
    ),
    Entry("bag of all", "bag", partial(bag, last=math.inf)),
    Entry("bag of the last 8, random codes", "bag", partial(bag, last=8.0, of="code")),
    Entry("state of the last token", "delay", partial(shifted, steps=-1)),
    Entry("state of the next token", "leak", partial(shifted, steps=1)),
    Entry("next token", "leak", next_token),
    Entry("next token, half of the tokens", "leak", half_of_the_tokens),
    Entry("next token, half of the variance", "leak", half_of_the_variance),
    Entry("own and a tenth of the next token", "leak", partial(with_next_token, share=0.1)),
    Entry("own and three tenths of the next token", "leak", partial(with_next_token, share=0.3)),
    Entry(
        "own and a tenth of the next token's code",
        "leak",
        partial(with_next_token, share=0.1, of="code"),
    ),
    Entry("fresh weights", "untrained", changed(fresh, "fresh")),
    Entry("fresh weights, own embedding", "untrained", changed(twin, "fresh")),
    Entry("redrawn matrices", "untrained", changed(randomised, "redrawn")),
    Entry("token alone", "shortcut", token_alone),
    *(
        Entry(f"{share} % own", "dose", partial(mixture, share=share / 100))
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


def entries(materials: Materials) -> list[Entry]:
    """Return all sources that can be made: those of the list, other layers, and siblings."""
    listed = list(SOURCES)
    for name, steps in OTHER_LAYERS.items():
        if 0 <= materials.layer + steps < materials.target.n_layers:
            listed.append(Entry(name, "layer", partial(other_layer, steps=steps)))
    for name in materials.siblings:
        listed.append(Entry(name, "real", partial(sibling, name=name)))
    return listed
