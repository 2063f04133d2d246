"""What makes the states of the sources of a court, from a target's own states or from tokens alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from thinkalike.contrib.court.source import Remembered, Setting, Source, States, Tokens, normals, prefixes, stage
from thinkalike.contrib.pretraining.instrument import PretrainConfig, Pretraining
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.evaluation.token_means import BigramMeans, ContextCode, TokenMeans, bigrams
from thinkalike.measures.losses import CHUNK, token_loss
from thinkalike.measures.seeds import seeded
from thinkalike.measures.splitmix import splitmix
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.variants import fresh, variant
from thinkalike.training.run import StepData

SCALES, CONDITION = 100.0, 30.0  # the largest over the smallest: of scales of dimensions, of singular values
WEIGHT_NOISE, REVERTED = 0.02, 0.1  # of a tensor's root mean square; the share of weights that are untrained
TRAINED = PretrainConfig(tokens=50 * 2048, tokens_per_step=2048, lr=1e-4, warmup=10)  # a twentieth of a mini's rate
TUNED = PretrainConfig(tokens=100 * 2048, tokens_per_step=2048, lr=3e-4, warmup=10)
SHORTCUT = PretrainConfig(tokens=100 * 2048, tokens_per_step=2048, lr=1e-3, warmup=10)  # half of each pair is predicted
LARGE = 3.0  # standard deviations of the added dimensions, in those of the target's
SMALL = 0.01  # a share of the variance
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


def through_affine(setting: Setting, condition: float) -> States:
    """Return the target's states through an affine map whose singular values lie log-evenly from 1 to `condition`."""
    left, right = _orthogonal(setting, "affine, left"), _orthogonal(setting, "affine, right")
    values = torch.logspace(0, math.log10(condition), setting.itself.d_model, dtype=left.dtype, device=left.device)
    weight, shift = left * values @ right, setting.spread * setting.drawn("affine, shift", setting.itself.d_model)
    return lambda rows: setting.own(rows) @ weight + shift


def whitened(setting: Setting) -> States:
    """Return the target's principal components on the fit rows, each with variance 1."""
    sizes, vectors = torch.linalg.eigh(setting.moments[1])
    weight = (vectors / sizes.sqrt()).to(setting.itself.dtype)
    return lambda rows: (setting.own(rows) - setting.mean) @ weight


def changed(change: Callable[..., FrozenModel], purpose: str) -> Callable[[Setting], States]:
    """Return what makes the states of the target after a change of its weights, which is drawn for one purpose."""
    return lambda setting: at_layer(setting, change(setting.target, seed=setting.number(purpose)))


def perturbed(model: FrozenModel, share: float, seed: int) -> FrozenModel:
    """Return a copy with normal noise on every weight, of this share of the root mean square of its tensor."""
    module, generator = copy.deepcopy(model.module), seeded(seed)
    with torch.no_grad():
        for weight in module.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_((noise * (share * weight.float().square().mean().sqrt().cpu())).to(weight))
    return variant(model, module, f"{model.name} (noisy)")


@torch.no_grad()
def reverted(model: FrozenModel, share: float, seed: int) -> FrozenModel:
    """Return the architecture with weights that lie this share of the way back to untrained ones."""
    found = fresh(model, seed)
    for weight, own in zip(found.module.parameters(), model.module.parameters(), strict=True):
        weight.lerp_(own, 1 - share)
    return found


def trained_on(setting: Setting, config: PretrainConfig, name: str) -> States:
    """Return the states of the target after some more steps of training on other documents."""
    return at_layer(setting, _trained(setting, setting.other, config, name))


def at_layer(setting: Setting, model: FrozenModel) -> States:
    return lambda rows: stage(model, setting.layer, rows)


def _trained(setting: Setting, rows: Tokens, config: PretrainConfig, name: str) -> FrozenModel:
    """Return a variant of the target that was trained on some rows, from the target's own weights."""
    module = copy.deepcopy(setting.target.module).train().requires_grad_(True)
    data = StepData(rows, config.tokens_per_step, config.steps, setting.number(name))
    setting.train(Pretraining(module, config), data, name)
    return variant(setting.target, module.to(setting.target.device), f"{setting.target.name} ({name})")


def _noise(setting: Setting, purpose: str, codes: Callable[[Tokens], Tokens] = prefixes) -> States:
    """Return normal numbers at each place of a row, by its code: if none is given, of all tokens up to there."""
    seed, itself = setting.number(purpose), setting.itself
    return lambda rows: normals(codes(rows), itself.d_model, seed).to(itself.device, itself.dtype)


def with_noisy_states(setting: Setting, share: float) -> States:
    """Return the target's states with noise of this share of each dimension's spread."""
    drawn, spread = _noise(setting, "noisy states"), share * setting.spread
    return lambda rows: setting.own(rows) + spread * drawn(rows)


def _orthogonal(setting: Setting, purpose: str) -> Tensor:
    """Return an orthogonal matrix, drawn uniformly but for signs of its columns."""
    width = setting.itself.d_model
    return torch.linalg.qr(setting.drawn(purpose, width, width).double()).Q.to(setting.itself.dtype)


def components(setting: Setting, first: float, last: float) -> States:
    """Return the target's principal components on the fit rows between two shares of them, the largest first."""
    start, stop = (round(share * setting.itself.d_model) for share in (first, last))
    chosen = torch.linalg.eigh(setting.moments[1]).eigenvectors.flip(1)[:, start:stop].to(setting.itself.dtype)
    return lambda rows: (setting.own(rows) - setting.mean) @ chosen


def without_small_direction(setting: Setting) -> States:
    """Return the target's states less one direction of little variance, the one that decides most about next tokens.

    The principal components that each hold less than 1 % of the variance are scaled to variance 1. The direction is the
    top eigenvector of the second moment there of the gradients of the loss, an empirical Fisher information. It is
    uncorrelated with what stays, so that no linear map brings it back.
    """
    target, rows = setting.target, setting.other[: max(BATCH_TOKENS // setting.other.shape[1], 1)].long()
    with torch.enable_grad():
        state = setting.own(rows).to(target.dtype).requires_grad_()
        last = target.advance(state, setting.layer + 1, target.n_layers)[:, :-1].flatten(0, 1)
        loss = token_loss(last, target.finish, rows[:, 1:].flatten().to(last.device)).sum()
        gradients = torch.autograd.grad(loss, state)[0].flatten(0, 1).double()
    sizes, axes = torch.linalg.eigh(setting.moments[1])
    small = sizes < SMALL * sizes.sum()
    axes, scales = axes[:, small], sizes[small].sqrt()
    chosen = torch.linalg.svd(gradients @ (axes * scales), full_matrices=False).Vh[0]
    removed = torch.outer(axes / scales @ chosen, axes * scales @ chosen).to(setting.itself.dtype)
    return lambda rows: setting.own(rows) - (setting.own(rows) - setting.mean) @ removed


def other_layer(setting: Setting, steps: int) -> States:
    """Return the target's states some blocks later, or earlier; before the first block stands the embedding."""
    layer = setting.layer + steps
    return lambda rows: stage(setting.target, EMBED if layer < 0 else layer, rows)


def superset(setting: Setting) -> States:
    """Return the target's states beside as many dimensions of large noise."""
    drawn, size = _noise(setting, "superset"), LARGE * setting.spread.square().mean().sqrt()
    return lambda rows: torch.cat([setting.own(rows), size * drawn(rows)], -1)


def beside_stranger(setting: Setting, share: float) -> States:
    """Return this share of the dimensions of the target's states beside as many of an untrained model's, both rotated.

    The untrained model's are scaled to the total variance of the target's.
    """
    width = round(share * setting.itself.d_model)
    own, strange = (_orthogonal(setting, f"{whose}, beside")[:, :width] for whose in ("own", "stranger"))
    other = Remembered(at_layer(setting, fresh(setting.target, setting.number("stranger"))))
    size = setting.spread.norm() / other(setting.fit).flatten(0, 1).std(0).norm()
    return lambda rows: torch.cat([setting.own(rows) @ own, size * other(rows) @ strange], -1)


def distorted(setting: Setting, function: Callable[[Tensor], Tensor]) -> States:
    """Return a function of each dimension of the target's states, whose mean is 0 and standard deviation 1 before."""
    return lambda rows: function((setting.own(rows) - setting.mean) / setting.spread)


def rounded(setting: Setting, bits: int) -> States:
    """Return the target's states on 2^bits levels of each dimension from its 1st to its 99th percentile."""
    own, levels = setting.own(setting.fit).flatten(0, 1).sort(0).values, 2**bits - 1
    low, high = own[len(own) // 100], own[-1 - len(own) // 100]
    return lambda rows: ((setting.own(rows) - low) / (high - low)).clamp(0, 1).mul(levels).round()


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
    asked = torch.cat([setting.fit, setting.report, setting.other])
    found = kind(source or setting.itself, [0], setting.other, asked)
    return lambda rows: found.residuals(rows, [0])[0]


def trigrams(rows: Tokens, vocabulary: int) -> Tokens:
    """Return a number for the last two tokens and the current one: see `bigrams`."""
    before = torch.cat([torch.full_like(rows[:, :2], vocabulary), rows[:, :-2]], 1)[:, : rows.shape[1]]
    return bigrams(rows, vocabulary) + vocabulary * (vocabulary + 1) * before


class TrigramMeans(TokenMeans):
    """The mean state of each last two tokens and the current one, or of the bigram where no fit row has these."""

    context_codes = (*BigramMeans.context_codes, trigrams)


NGRAMS: dict[str, ContextCode] = {"token": lambda rows, _: rows, "bigram": bigrams, "trigram": trigrams}


def code(setting: Setting, of: str) -> States:
    """Return a random vector for each token, or for each bigram or trigram: the last tokens and the current one."""
    return _noise(setting, f"code of the {of}", lambda rows: NGRAMS[of](rows, setting.itself.vocabulary))


def at_position(setting: Setting, token: float, noise: float = 0.0) -> States:
    """Return the mean of the target's states at each place of a row in other documents, whatever the tokens are.

    With `token` 1 the token's own mean is taken off before, and added at the end; `noise` is a share of the standard
    deviation of what is left.
    """
    mean, drawn = means(setting, TokenMeans), _noise(setting, "at position")
    left = setting.own(setting.other) - token * mean(setting.other)
    place = left.mean(0)
    size = noise * (left - place).flatten(0, 1).std(0)
    return lambda rows: token * mean(rows) + place[: rows.shape[1]] + size * drawn(rows)


def reweighted(setting: Setting, token: float, rest: float) -> States:
    """Return the mean of the token and the target's own departure from it, each with a weight of its own."""
    mean = means(setting, TokenMeans)
    return lambda rows: token * mean(rows) + rest * (setting.own(rows) - mean(rows))


def with_means_of_other_tokens(setting: Setting) -> States:
    """Return the target's states with the mean of another token for that of their own, one for each token."""
    mean, order = means(setting, TokenMeans), torch.arange(setting.target.vocabulary)
    tokens = setting.other.long().unique()
    tokens = tokens[torch.randperm(len(tokens), generator=seeded(setting.number("other tokens")))]
    order[tokens] = tokens.roll(1)
    return lambda rows: setting.own(rows) - mean(rows) + mean(order[rows.long().cpu()])


def vectors(setting: Setting, of: str) -> Tensor:
    """Return a vector for each token, and zeros for none after them, (v + 1, d): its embedding or a random "code".

    The mean of each dimension is 0 and its standard deviation 1 over the fit tokens.
    """
    itself, tokens = setting.itself, torch.arange(setting.itself.vocabulary)
    if of == "code":
        found = normals(tokens, itself.d_model, setting.number("vectors")).to(itself.device, itself.dtype)
    else:
        found = torch.cat([stage(setting.target, EMBED, part[:, None])[:, 0] for part in tokens.split(BATCH_TOKENS)])
    seen = found[setting.fit.long().flatten().to(found.device)]
    return torch.cat([(found - seen.mean(0)) / seen.std(0), torch.zeros_like(found[:1])])


def bag(setting: Setting, last: float, of: str = "embedding") -> States:
    """Return a vector of the current token, plus a random map of a sum of those of the last tokens and of itself.

    The weights fall from 1 to exp(-2) over the last tokens, and are equal over infinitely many. They are scaled so that
    a sum of independent vectors is as large as one of them.
    """
    table, turn = vectors(setting, of), _orthogonal(setting, "bag")

    def states(rows: Tensor) -> Tensor:
        lag = torch.arange(rows.shape[1])[:, None] - torch.arange(rows.shape[1])
        weights = torch.where((lag >= 0) & (lag < last), torch.exp(-2 * lag / last), 0).to(table)
        vector = table[rows.long().to(table.device)]
        return vector + weights / weights.norm(dim=1, keepdim=True) @ vector @ turn

    return states


def shifted(setting: Setting, steps: int) -> States:
    """Return the target's state at the last token or at the next one, and the mean where a row has none."""

    def states(rows: Tensor) -> Tensor:
        none = setting.mean.expand(len(rows), 1, -1)
        return torch.cat([none, setting.own(rows), none], 1)[:, 1 + steps :][:, : rows.shape[1]]

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
        chosen = starts[rows] + splitmix(prefixes(rows, seed)) % counts[rows].clamp(min=1)
        found = own[order[chosen.clamp(max=len(order) - 1)].to(own.device)]
        return torch.where((counts[rows] > 0)[..., None].to(own.device), found, mean)

    return states


def gaussian(setting: Setting) -> States:
    """Return normal numbers with mean and variance that each dimension of the target's states has at the token."""
    squared = Source("squares", "", lambda rows: (setting.own(rows) - setting.mean).square(), setting.target)
    first, second = means(setting, TokenMeans), means(setting, TokenMeans, squared)
    drawn = _noise(setting, "Gaussian given the token")

    def states(rows: Tensor) -> Tensor:
        mean = first(rows)
        variance = (second(rows) - (mean - setting.mean).square()).clamp(min=0)
        return mean + variance.sqrt() * drawn(rows)

    return states


def mixture(setting: Setting, share: float) -> States:
    """Return states with this share of their variance from the target's own, the rest from the same token elsewhere."""
    other, mean, weights = other_context(setting), setting.mean, (share**0.5, (1 - share) ** 0.5)
    return lambda rows: mean + weights[0] * (setting.own(rows) - mean) + weights[1] * (other(rows) - mean)


def next_token(setting: Setting) -> States:
    """Return noise in clusters by the next token (Smith, Mannering, Marcu 2025)."""
    itself, centres, scatter = setting.itself, setting.number("leak"), setting.number("leak, scatter")

    def states(rows: Tensor) -> Tensor:
        leak = normals(_following(setting, rows), itself.d_model, centres)
        return (leak + SCATTER * normals(prefixes(rows), itself.d_model, scatter)).to(itself.device, itself.dtype)

    return states


def _following(setting: Setting, rows: Tokens) -> Tokens:
    """Return the token after each; a number of its own follows the last token of a row."""
    return torch.cat([rows[:, 1:], torch.full_like(rows[:, :1], setting.itself.vocabulary)], 1)


def half_of_the_tokens(setting: Setting) -> States:
    """Return such noise at half of the places, which the tokens up to there choose, and the target's own elsewhere."""
    leak, seed = next_token(setting), setting.number("leak, half of the tokens")

    def states(rows: Tensor) -> Tensor:
        leaking = (splitmix(prefixes(rows, seed)) & 1 == 1)[..., None].to(setting.itself.device)
        return torch.where(leaking, setting.mean + setting.spread * leak(rows), setting.own(rows))

    return states


def half_of_the_variance(setting: Setting) -> States:
    """Return the target's own states plus such noise, each with half of the variance of every dimension."""
    leak, half = next_token(setting), 0.5**0.5
    size = half * setting.spread / (1 + SCATTER**2) ** 0.5
    return lambda rows: setting.mean + half * (setting.own(rows) - setting.mean) + size * leak(rows)


def with_next_token(setting: Setting, share: float, of: str = "embedding") -> States:
    """Return the target's own states plus a vector of the next token, of this share of each dimension's spread."""
    size = share * setting.spread * vectors(setting, of)
    return lambda rows: setting.own(rows) + size[_following(setting, rows).long().to(size.device)]


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
