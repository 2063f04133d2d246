"""The table of the sources of a court: the name of each, its kind, and what makes its states."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from thinkalike.contrib.court import constructions as make
from thinkalike.contrib.court.source import Remembered, Setting, Source, States
from thinkalike.evaluation.language import BigramMeans, TokenMeans
from thinkalike.models.load import fresh, randomised, twin


class Entry(NamedTuple):
    """A source before it is made: its name, its kind, and what makes its states."""

    name: str
    kind: str
    make: Callable[[Setting], States]

    def made(self, setting: Setting) -> Source:
        return Source(self.name, self.kind, Remembered(self.make(setting)), setting.target)


SOURCES = (
    Entry("rotated", "same", make.rotated),
    Entry("rescaled and permuted", "same", make.rescaled),
    Entry("affine", "same", partial(make.through_affine, condition=make.CONDITION)),
    Entry("affine, condition 1000", "same", partial(make.through_affine, condition=1000.0)),
    Entry("whitened", "same", make.whitened),
    Entry("noisy weights", "near", make.changed(partial(make.perturbed, share=make.WEIGHT_NOISE), "noisy weights")),
    Entry("partly untrained weights", "near", make.changed(partial(make.reverted, share=make.REVERTED), "reverted")),
    Entry("trained on", "near", partial(make.trained_on, config=make.TRAINED, name="trained on")),
    Entry("tuned", "near", partial(make.trained_on, config=make.TUNED, name="tuned")),
    Entry("noisy states", "near", partial(make.with_noisy_states, share=0.1)),
    Entry("noise of 2 %", "near", partial(make.with_noisy_states, share=0.02)),
    Entry("noise of 30 %", "near", partial(make.with_noisy_states, share=0.3)),
    Entry("6 bits", "near", partial(make.rounded, bits=6)),
    *(Entry(f"{bits} bits", "distorted", partial(make.rounded, bits=bits)) for bits in (3, 2)),
    Entry("power 1.5", "distorted", partial(make.distorted, function=lambda x: x * x.abs().sqrt())),
    Entry("tanh", "distorted", partial(make.distorted, function=torch.tanh)),
    Entry("log-probabilities", "answers", make.log_probabilities),
    Entry("top components", "part", partial(make.components, first=0.0, last=1 / 2)),
    Entry("top 9/16 of the components", "part", partial(make.components, first=0.0, last=9 / 16)),
    Entry("top 3/4 of the components", "part", partial(make.components, first=0.0, last=3 / 4)),
    Entry("all but the top tenth", "part", partial(make.components, first=1 / 10, last=1.0)),
    Entry("without a small direction", "part", make.without_small_direction),
    Entry("less the token mean", "part", partial(make.reweighted, token=0.0, rest=1.0)),
    Entry("a tenth of the departure from the token mean", "scaled", partial(make.reweighted, token=1.0, rest=0.1)),
    Entry("other tokens' means", "wrong tokens", make.with_means_of_other_tokens),
    Entry("superset", "superset", make.superset),
    Entry("beside a stranger", "superset", partial(make.beside_stranger, share=1.0)),
    Entry("half own, half stranger", "mixture", partial(make.beside_stranger, share=1 / 2)),
    Entry("token mean", "token", partial(make.means, kind=TokenMeans)),
    Entry("bigram mean", "n-gram", partial(make.means, kind=BigramMeans)),
    Entry("trigram mean", "n-gram", partial(make.means, kind=make.TrigramMeans)),
    *(Entry(f"{name} code", "token", partial(make.code, of=name)) for name in make.NGRAMS),
    Entry("other context", "token", make.other_context),
    Entry("Gaussian given the token", "token", make.gaussian),
    Entry("position mean", "position", partial(make.at_position, token=0.0)),
    Entry("token and position means", "position", partial(make.at_position, token=1.0)),
    Entry("token and position means, noisy", "position", partial(make.at_position, token=1.0, noise=1.0)),
    Entry("embedding", "position", lambda setting: make.other_layer(setting, -1 - setting.layer)),
    *(Entry(f"bag of the last {last}", "bag", partial(make.bag, last=float(last))) for last in (4, 8, 32)),
    Entry("bag of all", "bag", partial(make.bag, last=math.inf)),
    Entry("bag of the last 8, random codes", "bag", partial(make.bag, last=8.0, of="code")),
    Entry("state of the last token", "delay", partial(make.shifted, steps=-1)),
    Entry("state of the next token", "leak", partial(make.shifted, steps=1)),
    Entry("next token", "leak", make.next_token),
    Entry("next token, half of the tokens", "leak", make.half_of_the_tokens),
    Entry("next token, half of the variance", "leak", make.half_of_the_variance),
    Entry("own and a tenth of the next token", "leak", partial(make.with_next_token, share=0.1)),
    Entry("own and three tenths of the next token", "leak", partial(make.with_next_token, share=0.3)),
    Entry("own and a tenth of the next token's code", "leak", partial(make.with_next_token, share=0.1, of="code")),
    Entry("fresh weights", "untrained", make.changed(fresh, "fresh")),
    Entry("fresh weights, own embedding", "untrained", make.changed(twin, "fresh")),
    Entry("redrawn matrices", "untrained", make.changed(randomised, "redrawn")),
    Entry("token alone", "shortcut", make.token_alone),
    *(Entry(f"{share} % own", "dose", partial(make.mixture, share=share / 100)) for share in (0, 20, 40, 60, 80, 100)),
)
LAYERS = {"two layers before": -2, "layer before": -1, "layer after": 1, "two layers after": 2}


def entries(setting: Setting) -> list[Entry]:
    """Return all sources that can be made in a setting: those of the table, its other layers, and its siblings."""
    inside = {name: steps for name, steps in LAYERS.items() if 0 <= setting.layer + steps < setting.target.n_layers}
    layers = [Entry(name, "layer", partial(make.other_layer, steps=steps)) for name, steps in inside.items()]
    return [*SOURCES, *layers, *(Entry(name, "real", partial(make.sibling, name=name)) for name in setting.siblings)]
