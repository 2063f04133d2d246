"""Sources that are the target itself in other coordinates, or as good as itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from thinkalike.config import PretrainConfig
from thinkalike.court.source import Remembered, Setting, Source, States, Tokens, mixed, normals, prefixes, stage
from thinkalike.evaluation.language import BATCH_TOKENS
from thinkalike.evaluation.token_means import BigramMeans, TokenMeans, bigrams
from thinkalike.measures.losses import CHUNK
from thinkalike.models.controls import fresh, perturbed, randomised, variant
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.training.models import Pretraining

SCALES, CONDITION = 100.0, 30.0  # the largest over the smallest: of scales of dimensions, of singular values
WEIGHT_NOISE, STATE_NOISE = 0.02, 0.1  # of a tensor's root mean square, of a dimension's standard deviation
TRAINED = PretrainConfig(tokens=50 * 2048, tokens_per_step=2048, lr=1e-4, warmup=10)  # a twentieth of a mini's rate
SHORTCUT = PretrainConfig(tokens=100 * 2048, tokens_per_step=2048, lr=1e-3, warmup=10)  # half of each pair is predicted
LARGE = 3.0  # standard deviations of the added dimensions, in those of the target's
SCATTER = 0.5  # of noise about the centre of its cluster, in standard deviations of the centres


def rotated(setting: Setting) -> States:
    """Return the target's states through a random orthogonal map."""
    turn = _orthogonal(setting, "rotated")
    return lambda rows: setting.own(rows) @ turn


def rescaled(setting: Setting) -> States:
    """Return the target's states with dimensions in another order, each at a scale of its own, log-uniform."""
    generator = torch.Generator().manual_seed(setting.number("rescaled"))
    width = setting.itself.d_model
    order = torch.randperm(width, generator=generator).to(setting.itself.device)
    exponents = torch.rand(width, generator=generator).to(setting.itself.device, setting.itself.dtype) - 0.5
    return lambda rows: setting.own(rows)[..., order] * SCALES**exponents


def through_affine(setting: Setting) -> States:
    """Return the target's states through an affine map whose singular values lie log-evenly between 1 and 30."""
    left, right = _orthogonal(setting, "affine, left"), _orthogonal(setting, "affine, right")
    values = torch.logspace(0, math.log10(CONDITION), setting.itself.d_model, dtype=left.dtype, device=left.device)
    weight, shift = left * values @ right, setting.spread * setting.drawn("affine, shift", setting.itself.d_model)
    return lambda rows: setting.own(rows) @ weight + shift


def changed(change: Callable[..., FrozenModel], purpose: str) -> Callable[[Setting], States]:
    """Return what makes the states of the target after a change of its weights, which is drawn for one purpose."""
    return lambda setting: at_layer(setting, change(setting.target, seed=setting.number(purpose)))


def trained_on(setting: Setting) -> States:
    """Return the states of the target after some more steps of training on other documents."""
    return at_layer(setting, _trained(setting, setting.other, TRAINED, "trained on"))


def at_layer(setting: Setting, model: FrozenModel) -> States:
    """Return the states of a variant of the target at the layer of the setting."""
    return lambda rows: stage(model, setting.layer, rows)


def _trained(setting: Setting, rows: Tokens, config: PretrainConfig, name: str) -> FrozenModel:
    """Return a variant of the target that was trained on some rows, from the target's own weights."""
    module = copy.deepcopy(setting.target.module).train().requires_grad_(True)
    setting.train(Pretraining(module, rows, config, setting.number(name)), name)
    return variant(setting.target, module.to(setting.target.device), f"{setting.target.name} ({name})")


def with_noisy_states(setting: Setting) -> States:
    """Return the target's states with noise that is a function of all tokens up to there."""
    seed, spread = setting.number("noisy states"), STATE_NOISE * setting.spread

    def states(rows: Tensor) -> Tensor:
        own = setting.own(rows)
        return own + spread * normals(prefixes(rows), own.shape[-1], seed).to(own)

    return states


def _orthogonal(setting: Setting, purpose: str) -> Tensor:
    """Return an orthogonal matrix, drawn uniformly but for signs of its columns."""
    width = setting.itself.d_model
    return torch.linalg.qr(setting.drawn(purpose, width, width).double()).Q.to(setting.itself.dtype)


def top_components(setting: Setting) -> States:
    """Return the target's states in their first principal components on the fit rows, half as many as dimensions."""
    mean, covariance = setting.moments
    half = setting.itself.d_model // 2
    top = torch.linalg.eigh(covariance).eigenvectors[:, -half:].to(setting.itself.dtype)
    return lambda rows: (setting.own(rows) - mean.to(top)) @ top


def other_layer(setting: Setting, steps: int) -> States:
    """Return the target's states some blocks later, or earlier; before the first block stands the embedding."""
    layer = setting.layer + steps
    return lambda rows: stage(setting.target, EMBED if layer < 0 else layer, rows)


def superset(setting: Setting) -> States:
    """Return the target's states beside as many dimensions of large noise, a function of all tokens up to there."""
    seed, width = setting.number("superset"), setting.itself.d_model
    size = LARGE * setting.spread.square().mean().sqrt()

    def states(rows: Tensor) -> Tensor:
        own = setting.own(rows)
        return torch.cat([own, size * normals(prefixes(rows), width, seed).to(own)], -1)

    return states


def log_probabilities(setting: Setting) -> States:
    """Return a random projection of the target's log-probabilities of the next token: its answers, not its states."""
    target, width = setting.target, setting.itself.d_model
    weight = setting.drawn("log-probabilities", target.vocabulary, width) / target.vocabulary**0.5

    def states(rows: Tensor) -> Tensor:
        last = stage(target, target.n_layers - 1, rows).flatten(0, 1)
        parts = [target.finish(part.to(target.dtype)).to(weight).log_softmax(-1) @ weight for part in last.split(CHUNK)]
        return torch.cat(parts).view(*rows.shape, width)

    return states


def means(setting: Setting, kind: type[TokenMeans], source: Source | None = None) -> States:
    """Return the mean of the target's states, or of a source's, at each token or pair of tokens in other documents."""
    asked = torch.cat([setting.fit, setting.report])
    found = kind(source or setting.itself, [0], setting.other, asked)
    return lambda rows: found.residuals(rows, [0])[0]


def code(setting: Setting, of: str) -> States:
    """Return a random vector for each token, or for each bigram: the pair of the last token and the current one."""
    seed, itself = setting.number(f"code of the {of}"), setting.itself

    def states(rows: Tensor) -> Tensor:
        codes = rows if of == "token" else bigrams(rows, itself.vocabulary)
        return normals(codes, itself.d_model, seed).to(itself.device, itself.dtype)

    return states


def other_context(setting: Setting) -> States:
    """Return the target's state at the same token in another document, which the tokens up to there choose.

    A token that no other document has gets the mean of all.
    """
    tokens, seed = setting.other.long().flatten(), setting.number("other context")
    order, counts = tokens.argsort(stable=True), tokens.bincount(minlength=setting.target.vocabulary)
    starts, own, mean = counts.cumsum(0) - counts, setting.own(setting.other).flatten(0, 1), setting.mean

    def states(rows: Tensor) -> Tensor:
        rows = rows.long().cpu()
        chosen = starts[rows] + mixed(prefixes(rows, seed)) % counts[rows].clamp(min=1)
        found = own[order[chosen.clamp(max=len(order) - 1)].to(own.device)]
        return torch.where((counts[rows] > 0)[..., None].to(own.device), found, mean)

    return states


def gaussian(setting: Setting) -> States:
    """Return normal numbers with mean and variance that each dimension of the target's states has at the token."""
    squared = Source("squares", "", lambda rows: (setting.own(rows) - setting.mean).square(), setting.target)
    first, second = means(setting, TokenMeans), means(setting, TokenMeans, squared)
    seed = setting.number("Gaussian given the token")

    def states(rows: Tensor) -> Tensor:
        mean = first(rows)
        variance = (second(rows) - (mean - setting.mean).square()).clamp(min=0)
        return mean + variance.sqrt() * normals(prefixes(rows), mean.shape[-1], seed).to(mean)

    return states


def mixture(setting: Setting, share: float) -> States:
    """Return states with this share of their variance from the target's own, the rest from the same token elsewhere."""
    other, mean, weights = other_context(setting), setting.mean, (share**0.5, (1 - share) ** 0.5)
    return lambda rows: mean + weights[0] * (setting.own(rows) - mean) + weights[1] * (other(rows) - mean)


def next_token(setting: Setting) -> States:
    """Return noise in clusters by the next token (Smith, Mannering, Marcu 2025)."""
    centres, scatter = setting.number("leak"), setting.number("leak, scatter")
    itself = setting.itself

    def states(rows: Tensor) -> Tensor:
        noise = normals(prefixes(rows), itself.d_model, scatter)
        none = torch.full_like(rows[:, :1], itself.vocabulary)  # follows the last token of a row
        leak = normals(torch.cat([rows[:, 1:], none], 1), itself.d_model, centres)
        return (leak + SCATTER * noise).to(itself.device, itself.dtype)

    return states


def half_of_the_tokens(setting: Setting) -> States:
    """Return such noise at half of the places, which the tokens up to there choose, and the target's own elsewhere."""
    leak, seed = next_token(setting), setting.number("leak, half of the tokens")

    def states(rows: Tensor) -> Tensor:
        leaking = (mixed(prefixes(rows, seed)) & 1 == 1)[..., None].to(setting.itself.device)
        return torch.where(leaking, setting.mean + setting.spread * leak(rows), setting.own(rows))

    return states


def half_of_the_variance(setting: Setting) -> States:
    """Return the target's own states plus such noise, each with half of the variance of every dimension."""
    leak, half = next_token(setting), 0.5**0.5
    size = half * setting.spread / (1 + SCATTER**2) ** 0.5
    return lambda rows: setting.mean + half * (setting.own(rows) - setting.mean) + size * leak(rows)


def token_alone(setting: Setting) -> States:
    """Return the states of a twin of the target that was trained on to predict from the current token alone.

    Each token is a row of its own, so that there is nothing else to attend to, in whatever architecture. The twin
    begins with the target's weights, which makes it harder to tell from the target.
    """
    pairs = torch.stack([setting.other[:, :-1], setting.other[:, 1:]], -1).flatten(0, 1)
    model = _trained(setting, pairs, SHORTCUT, "token alone")
    tokens = torch.arange(model.vocabulary)[:, None].split(BATCH_TOKENS)
    table = torch.cat([stage(model, setting.layer, part)[:, 0] for part in tokens])
    return lambda rows: table[rows.to(table.device)]


def sibling(setting: Setting, name: str) -> States:
    """Return the states of a model that was really trained otherwise, at the block of the same relative depth."""
    model = setting.siblings[name]
    depth = round((setting.layer + 1) / setting.target.n_layers * model.n_layers)
    return lambda rows: stage(model, max(depth, 1) - 1, rows)


class Entry(NamedTuple):
    """A source before it is made: its name, its kind, and what makes its states."""

    name: str
    kind: str
    make: Callable[[Setting], States]

    def made(self, setting: Setting) -> Source:
        """Return the source in a setting."""
        return Source(self.name, self.kind, Remembered(self.make(setting)), setting.target)


SOURCES = (
    Entry("rotated", "same", rotated),
    Entry("rescaled and permuted", "same", rescaled),
    Entry("affine", "same", through_affine),
    Entry("noisy weights", "same", changed(partial(perturbed, share=WEIGHT_NOISE), "noisy weights")),
    Entry("trained on", "same", trained_on),
    Entry("noisy states", "same", with_noisy_states),
    Entry("log-probabilities", "answers", log_probabilities),
    Entry("top components", "part", top_components),
    Entry("layer before", "part", partial(other_layer, steps=-1)),
    Entry("layer after", "part", partial(other_layer, steps=1)),
    Entry("superset", "superset", superset),
    Entry("token mean", "token", partial(means, kind=TokenMeans)),
    Entry("bigram mean", "token", partial(means, kind=BigramMeans)),
    Entry("token code", "token", partial(code, of="token")),
    Entry("bigram code", "token", partial(code, of="bigram")),
    Entry("other context", "token", other_context),
    Entry("Gaussian given the token", "token", gaussian),
    Entry("next token", "leak", next_token),
    Entry("next token, half of the tokens", "leak", half_of_the_tokens),
    Entry("next token, half of the variance", "leak", half_of_the_variance),
    Entry("fresh weights", "untrained", changed(fresh, "fresh")),
    Entry("redrawn matrices", "untrained", changed(randomised, "redrawn")),
    Entry("token alone", "shortcut", token_alone),
    *(Entry(f"{share} % own", "dose", partial(mixture, share=share / 100)) for share in (0, 20, 40, 60, 80, 100)),
)


def entries(setting: Setting) -> list[Entry]:
    """Return all sources that can be made in a setting: those of the table, and the siblings that it names."""
    return [*SOURCES, *(Entry(name, "real", partial(sibling, name=name)) for name in setting.siblings)]
