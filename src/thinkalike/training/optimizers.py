"""The optimisers of stitches, and learning rates: SGD in whitened coordinates, decay towards a start, schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from thinkalike.training.recipe import StitchConfig

EPSILON = 1e-6  # of Adam: far above gradients that are rounding alone (1e-9), far below others (1e-3)
SMALLEST = 1e-4  # of the largest second moment: directions of less get steps as if they had that much

Groups = Iterable[dict[str, Any]]
Starts = Mapping[nn.Parameter, Tensor]  # the value that decay pulls a parameter to


def inverse_moments(
    mean: Float[Tensor, " d"], covariance: Float[Tensor, "d d"], *, constant: bool, smallest: float = SMALLEST
) -> Float[Tensor, "c c"]:
    """Return E[x̃ x̃ᵀ]⁻¹ of the inputs of a linear map: x̃ is x or, where it has a `constant`, [x 1]; c = d or d + 1.

    Small directions are noise, and their inverse is large; so no direction counts as smaller than `smallest` times the
    largest. 0 inverts exactly. Mean and covariance are divided by n and not n - 1.
    """
    moments = covariance if constant else covariance + torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(moments)
    inverse = vectors / values.clamp(min=smallest * float(values[-1])) @ vectors.T
    if not constant:
        return inverse
    last = -inverse @ mean  # by blocks: inputs about their mean and the constant are uncorrelated
    rows = torch.cat([inverse, last[None]]), torch.cat([last, 1 - mean @ last[:, None]])
    return torch.cat([rows[0], rows[1][:, None]], 1)


def pull_to(starts: Starts, groups: Groups) -> None:
    """Pull the weights of `starts` there, by the share lr × pull of their group, at most 1."""
    for group in groups:
        share = min(group["lr"] * group.get("pull", 0.0), 1.0)
        for weight in group["params"] if share else ():
            if weight in starts:
                weight.lerp_(starts[weight].to(weight), share)


def _precondition(layer: nn.Linear, inverse: Float[Tensor, "c c"], clip: float) -> None:
    """Multiply the gradient of [W b] by `inverse`; its norm in whitened coordinates is at most `clip`, unless 0."""
    parts = {weight: weight.grad.reshape(len(weight), -1) for weight in layer.parameters() if weight.grad is not None}
    if not parts:
        return
    raw = torch.cat([*parts.values()], 1)
    steps = raw @ inverse.to(raw)
    if clip > 0:
        norm = (raw * steps).sum().clamp(min=0).sqrt()
        steps = steps * (clip / (norm + 1e-6)).clamp(max=1)
    for weight, step in zip(parts, steps.split([part.shape[1] for part in parts.values()], 1), strict=True):
        weight.grad = step.reshape_as(weight).contiguous()


class WhitenedSGD(torch.optim.Optimizer):
    """SGD with Nesterov momentum, in coordinates in which the inputs of linear maps have mean 0 and covariance 1.

    A map y = W x + b of inputs with mean μ and covariance Σ is also y = A z + c of z = Σ^(-1/2) (x - μ). A step of
    SGD on A and c is a step on [W b] along its gradient times the inverse second moments of [x 1]:

        G ← ∂L/∂[W b] E[x̃ x̃ᵀ]⁻¹,   x̃ = [x 1]
        V ← m V + G
        [W b] ← [W b] - lr (G + m V)

    So the map is never written in other coordinates. Inputs of any scale and correlation are learnt from at one rate.
    Weights of no map in `inverses` get plain steps, those of `torch.optim.SGD(nesterov=True)`.

        >>> inputs = torch.randn(1000, 3) * torch.tensor([100.0, 1.0, 0.01]) + 5.0
        >>> layer = torch.nn.Linear(3, 2)
        >>> inverse = inverse_moments(inputs.mean(0), inputs.T.cov(correction=0), constant=True, smallest=0.0)
        >>> optimizer = WhitenedSGD(layer.parameters(), lr=0.5, inverses={layer: inverse})
        >>> for _ in range(60):
        ...     optimizer.zero_grad()
        ...     (layer(inputs) - inputs[:, :2]).square().mean().backward()
        ...     optimizer.step()
        >>> bool((layer(inputs) - inputs[:, :2]).abs().max() < 0.1)
        True

    Args:
        params: parameters, or groups of them with options of their own.
        lr: the step size.
        momentum: m, in [0, 1).
        weight_decay: λ; adds λ W to the gradient, after whitening, as in `torch.optim.SGD`.
        pull: λ of decoupled decay to `starts`: W ← W + min(lr λ, 1) (start - W) before each step.
        inverses: by linear map E[x̃ x̃ᵀ]⁻¹ of its inputs, (c, c); see `inverse_moments`.
        clip: the largest norm of a map's gradient in whitened coordinates, (tr G E[x̃ x̃ᵀ] Gᵀ)^½; 0: none.
        starts: by parameter where `pull` pulls it. As the inverses, they are not in `state_dict`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Groups,
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        pull: float = 0.0,
        *,
        inverses: Mapping[nn.Linear, Float[Tensor, "c c"]] | None = None,
        clip: float = 0.0,
        starts: Starts | None = None,
    ):
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "pull": pull}
        super().__init__(params, options)  # type: ignore[arg-type]
        self.inverses, self.clip, self.starts = dict(inverses or {}), clip, dict(starts or {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take a step; `closure`, if given, computes the loss and the gradients."""
        loss = torch.enable_grad()(closure)() if closure else None
        pull_to(self.starts, self.param_groups)
        for layer, inverse in self.inverses.items():
            _precondition(layer, inverse, self.clip)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group)
        return loss

    def _move(self, weight: Tensor, group: dict[str, Any]) -> None:
        step, momentum, state = weight.grad, group["momentum"], self.state[weight]
        assert step is not None
        if group["weight_decay"]:
            step = step.add(weight, alpha=group["weight_decay"])
        if momentum:
            velocity = state.get("momentum_buffer")
            velocity = step.detach().clone() if velocity is None else velocity.mul_(momentum).add_(step)
            state["momentum_buffer"] = velocity
            step = step.add(velocity, alpha=momentum)
        weight.add_(step, alpha=-group["lr"])


class PulledAdamW(torch.optim.AdamW):
    """AdamW whose groups may have a `pull`: decoupled decay to `starts` instead of zero; see `WhitenedSGD`."""

    def __init__(self, params: Groups, *, starts: Starts, **options: Any):
        super().__init__(params, **options)  # type: ignore[arg-type]
        self.starts = dict(starts)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take a step; `closure`, if given, computes the loss and the gradients."""
        loss = torch.enable_grad()(closure)() if closure else None
        pull_to(self.starts, self.param_groups)
        super().step()
        return loss


def optimizer_of(
    config: StitchConfig,
    groups: list[dict[str, Any]],
    inverses: Mapping[nn.Linear, Float[Tensor, "c c"]] | None = None,
    starts: Starts | None = None,
) -> torch.optim.Optimizer:
    """Return the optimiser that a configuration names.

    Args:
        groups: each with params, lr and weight_decay, which pulls to `starts`.
        inverses, starts: see `WhitenedSGD`.
    """
    if starts:
        groups = [{**group, "pull": group["weight_decay"], "weight_decay": 0.0} for group in groups]
    if config.optimizer == "sgd":
        return WhitenedSGD(groups, momentum=config.momentum, inverses=inverses, clip=config.clip, starts=starts)
    return PulledAdamW(groups, starts=starts or {}, eps=EPSILON, foreach=False)  # foreach: two more copies of weights


def scheduled(optimizer: torch.optim.Optimizer, share: Callable[[int], float]) -> dict[str, Any]:
    """Return what Lightning takes for an optimiser whose rate at each step is a `share` of its peak."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def rate(step: int, config: StitchConfig) -> float:
    """Return the learning rate at a step, as a share of the peak.

    linear: (s + 1) / (W + 1) in the W warm-up steps, 1 at step W, then down to 1 / (N - W) at the last step N - 1.
    cosine: the same warm-up, then half a cosine towards 0 at step N. average: the same warm-up, then 1. tuned_lens:
    s / W, then linear to 0 at step N - W, as in that library; step 0 and the last W steps do not train.
    """
    steps, warmup = config.steps, config.warmup
    if config.schedule == "tuned_lens":
        if step < warmup:
            return step / warmup
        return max(0.0, (steps - warmup - step) / max(steps - 2 * warmup, 1))
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if config.schedule == "average":
        return 1.0
    progress = (step - warmup) / (steps - warmup)
    return (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress


def momenta(config: StitchConfig) -> int:
    """Return how many numbers the optimiser keeps for each weight."""
    return 2 if config.optimizer == "adam" else int(config.momentum > 0)


def peak_rate(config: StitchConfig, width: int) -> float:
    """Return the peak rate of the optimiser for a φ that reads states of this width.

    SGD: lr, or lr (1 - momentum) as in tuned-lens. Adam: lr / √width, as it moves every entry by about its rate, and
    the entries of an isometry are of size 1 / √width.
    """
    if config.optimizer == "adam":
        return config.peak / math.sqrt(width)
    return config.peak * (1 - config.momentum) if config.scale_lr_by_momentum else config.peak
