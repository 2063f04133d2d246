"""The optimisers of stitches, and learning rates.

SGD in whitened coordinates, decay towards a start, and schedules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from thinkalike.training.recipe import StitchConfig

# of Adam: far above gradients that are only rounding (1e-9), far below all others (1e-3)
EPSILON = 1e-6
# of the largest second moment: directions with smaller moments get steps as if they had this much
SMALLEST_MOMENT = 1e-4
CLIPPING_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_
ADAM_MOMENTA = 2  # numbers that Adam keeps for each weight

Starts = Mapping[nn.Parameter, Tensor]  # the value that decay pulls a parameter to
Loss = Tensor | float
Closure = Callable[[], Loss]  # computes the loss and the gradients
Inverses = Mapping[nn.Linear, Float[Tensor, "c c"]]  # E[x̃ x̃ᵀ]⁻¹ of the inputs of each linear map


class ParameterGroup(TypedDict):
    """Parameters with the same options of an optimiser."""

    params: list[nn.Parameter]
    lr: float
    weight_decay: float


class Schedule(TypedDict):
    """A learning rate scheduler as Lightning takes it."""

    scheduler: LambdaLR
    interval: str


class ScheduledOptimizer(TypedDict):
    """What `LightningModule.configure_optimizers` returns."""

    optimizer: torch.optim.Optimizer
    lr_scheduler: Schedule


def inverse_moments(
    mean: Float[Tensor, " d"],
    covariance: Float[Tensor, "d d"],
    *,
    constant: bool,
    smallest: float = SMALLEST_MOMENT,
) -> Float[Tensor, "c c"]:
    """Return E[x̃ x̃ᵀ]⁻¹, the inverse second moments of the inputs of a linear map.

    x̃ is x with c = d entries, or [x 1] with c = d + 1 entries if there is a `constant`. In
    directions of little variance, which are mostly noise, the inverse would be large. So
    eigenvalues below `smallest` times the largest are raised to that.

    Args:
        mean: E[x].
        covariance: The covariance of x, divided by n and not n - 1.
        constant: Whether the map has a bias. The eigenvalues are then those of the covariance,
            and otherwise those of E[x xᵀ].
        smallest: The least eigenvalue, as a share of the largest; 0 inverts exactly.
    """
    moments = covariance
    if not constant:
        moments = covariance + torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(moments)
    floor = smallest * float(values[-1])
    inverse = vectors / values.clamp(min=floor) @ vectors.T
    if not constant:
        return inverse

    # With Σ⁻¹ the inverse covariance, the inverse of E[x̃ x̃ᵀ] is, in blocks,
    # [Σ⁻¹, -Σ⁻¹μ; -μᵀΣ⁻¹, 1 + μᵀΣ⁻¹μ].
    off_diagonal = -inverse @ mean  # -Σ⁻¹μ, (d)
    corner = 1 - mean @ off_diagonal[:, None]  # 1 + μᵀΣ⁻¹μ, (1)
    upper = torch.cat([inverse, off_diagonal[:, None]], 1)  # (d, d + 1)
    lower = torch.cat([off_diagonal, corner])  # (d + 1)
    return torch.cat([upper, lower[None]])


def pull_to_starts(starts: Starts, groups: Iterable[Mapping[str, Any]]) -> None:
    """Move each weight towards its start: W ← W + min(lr · pull, 1) (start - W), in place.

    Weights without a start, and groups without a `pull`, stay as they are.

    Args:
        starts: The value that each weight is pulled to.
        groups: The parameter groups of an optimiser, with `params`, `lr` and maybe `pull`.
    """
    for group in groups:
        share = min(group["lr"] * group.get("pull", 0.0), 1.0)
        if share == 0:
            continue
        for weight in group["params"]:
            if weight in starts:
                weight.lerp_(starts[weight].to(weight), share)


def _precondition(layer: nn.Linear, inverse: Float[Tensor, "c c"], clip: float) -> None:
    """Replace the gradient G of [W b] by G E[x̃ x̃ᵀ]⁻¹, clipped, in place.

    With this gradient, SGD learns as if the inputs were white. The clipped norm is that in
    whitened coordinates: √(tr G E[x̃ x̃ᵀ]⁻¹ Gᵀ). A layer without gradients stays as it is.

    Args:
        layer: The linear map, with or without a bias b.
        inverse: E[x̃ x̃ᵀ]⁻¹ of its inputs, with x̃ = [x 1] if it has a bias.
        clip: The largest norm; 0: no clipping.
    """
    weights = []
    gradients = []
    for weight in layer.parameters():
        if weight.grad is not None:
            weights.append(weight)
            gradients.append(weight.grad.reshape(len(weight), -1))
    if not weights:
        return

    gradient = torch.cat(gradients, 1)  # of [W b], (e, c)
    step = gradient @ inverse.to(gradient)
    if clip > 0:
        # Rounding can make the squared norm slightly negative.
        whitened_norm = (gradient * step).sum().clamp(min=0).sqrt()
        clip_factor = (clip / (whitened_norm + CLIPPING_EPSILON)).clamp(max=1)
        step = step * clip_factor

    columns = [weight_gradient.shape[1] for weight_gradient in gradients]  # d of W, 1 of b
    for weight, weight_step in zip(weights, step.split(columns, 1), strict=True):
        weight.grad = weight_step.reshape_as(weight).contiguous()


class WhitenedSGD(torch.optim.Optimizer):
    """SGD with Nesterov momentum, in coordinates where the inputs of linear maps are white.

    A map y = W x + b of inputs with mean μ and covariance Σ is also y = A z + c of
    z = Σ^(-1/2) (x - μ). A step of SGD on A and c is a step on [W b] along its gradient times the
    inverse second moments of [x 1]:

        G ← ∂L/∂[W b] E[x̃ x̃ᵀ]⁻¹,   x̃ = [x 1]
        V ← m V + G
        [W b] ← [W b] - lr (G + m V)

    So the map is never written in other coordinates. Inputs of any scale and correlation are
    learnt from at one rate. Weights of no map in `inverses` get plain steps, those of
    `torch.optim.SGD(nesterov=True)`.

        >>> inputs = torch.randn(1000, 3) * torch.tensor([100.0, 1.0, 0.01]) + 5.0
        >>> layer = torch.nn.Linear(3, 2)
        >>> covariance = inputs.T.cov(correction=0)
        >>> inverse = inverse_moments(inputs.mean(0), covariance, constant=True, smallest=0.0)
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
        clip: the largest norm of a map's gradient in whitened coordinates, (tr G E[x̃ x̃ᵀ] Gᵀ)^½;
            0: none.
        starts: the value that `pull` pulls each parameter to. Neither starts nor inverses are in
            `state_dict`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        pull: float = 0.0,
        *,
        inverses: Inverses | None = None,
        clip: float = 0.0,
        starts: Starts | None = None,
    ):
        """Make the optimiser.

        `inverses` are the inverse second moments of the inputs of each linear map, whose gradients
        are whitened. `clip` limits the norm of these; 0 does not. `pull` is the strength of a
        weight decay towards `starts`. The class describes all arguments.
        """
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "pull": pull}
        super().__init__(params, options)
        self.inverses = dict(inverses or {})
        self.clip = clip
        self.starts = dict(starts or {})

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | None = None
    ) -> Loss | None:
        """Take a step, and return the loss of `closure`, which computes the gradients first.

        Weights are pulled towards their starts. Gradients of the maps in `inverses` are whitened,
        and all weights are moved along theirs with Nesterov momentum. Without a closure, the
        gradients are there already and None is returned.
        """
        loss = _loss_of(closure)
        pull_to_starts(self.starts, self.param_groups)
        for layer, inverse in self.inverses.items():
            _precondition(layer, inverse, self.clip)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(
                        weight,
                        weight.grad,
                        lr=group["lr"],
                        momentum=group["momentum"],
                        weight_decay=group["weight_decay"],
                    )
        return loss

    def _move(
        self, weight: Tensor, gradient: Tensor, *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        """Update one weight W in place with Nesterov momentum, as `torch.optim.SGD` does.

            G ← G + λ W
            V ← m V + G    (V ← G in the first step)
            W ← W - lr (G + m V)

        Args:
            weight: The weight W.
            gradient: Its gradient G, which may be whitened.
            lr: The learning rate.
            momentum: m; 0: there is no V.
            weight_decay: λ.
        """
        step = gradient
        if weight_decay:
            step = step.add(weight, alpha=weight_decay)
        if momentum:
            state = self.state[weight]
            velocity = state.get("momentum_buffer")
            if velocity is None:
                velocity = step.detach().clone()
            else:
                velocity.mul_(momentum).add_(step)
            state["momentum_buffer"] = velocity
            step = step.add(velocity, alpha=momentum)
        weight.add_(step, alpha=-lr)


class PulledAdamW(torch.optim.AdamW):
    """AdamW that may pull weights to their initial values instead of to zero.

    The pull is a decoupled weight decay towards `starts`. A group of parameters sets its strength
    by the option `pull`.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        starts: Starts,
        eps: float = EPSILON,
        foreach: bool | None = None,
    ):
        """Make the optimiser.

        Args:
            params: Groups of parameters with options such as `lr`, the learning rate, and `pull`,
                the strength with which they are pulled to `starts`.
            starts: The value that each parameter is pulled to.
            eps: Adam's ε, the term added to the denominator.
            foreach: Whether all weights are updated in one call, which needs more memory.
        """
        super().__init__(params, eps=eps, foreach=foreach)
        self.starts = dict(starts)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | None = None
    ) -> Loss | None:
        """Take a step, and return the loss of `closure`, which computes the gradients first.

        Weights are pulled towards their starts, and then AdamW takes its step. Without a closure,
        the gradients are there already and None is returned.
        """
        loss = _loss_of(closure)
        pull_to_starts(self.starts, self.param_groups)
        super().step()
        return loss


def _loss_of(closure: Closure | None) -> Loss | None:
    """Call a closure with gradients enabled and return its loss; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def optimizer_of(
    config: StitchConfig,
    groups: Sequence[ParameterGroup],
    inverses: Inverses | None = None,
    starts: Starts | None = None,
) -> torch.optim.Optimizer:
    """Return the optimiser that a configuration names.

    Args:
        config: The settings of the stitch.
        groups: The parameters with their rates. With `starts`, the weight decay of a group pulls
            to these instead of zero.
        inverses: For SGD, E[x̃ x̃ᵀ]⁻¹ of the inputs of each map that is whitened; None: none is.
        starts: The value that decay pulls each parameter to; None: zero.
    """
    # Torch's own decay pulls to zero, and the option `pull` of both classes below to the starts.
    torch_groups: list[dict[str, Any]] = []
    for group in groups:
        torch_group: dict[str, Any] = {**group}
        if starts:
            torch_group["pull"] = group["weight_decay"]
            torch_group["weight_decay"] = 0.0
        torch_groups.append(torch_group)

    if config.optimizer == "sgd":
        return WhitenedSGD(
            torch_groups,
            momentum=config.momentum,
            inverses=inverses,
            clip=config.clip,
            starts=starts,
        )
    # foreach=True would hold two more copies of the weights in memory
    return PulledAdamW(torch_groups, starts=starts or {}, foreach=False)


def scheduled(
    optimizer: torch.optim.Optimizer, share: Callable[[int], float]
) -> ScheduledOptimizer:
    """Return an optimiser with a learning rate schedule, as Lightning takes them.

    Args:
        optimizer: The optimiser, whose groups have their peak rates.
        share: Takes a step, from 0 on, to the learning rate as a share of the peak rate.
    """
    schedule = Schedule(scheduler=LambdaLR(optimizer, share), interval="step")
    return ScheduledOptimizer(optimizer=optimizer, lr_scheduler=schedule)


def share_of_peak_rate(step: int, config: StitchConfig) -> float:
    """Return the learning rate at a step s, which counts from 0, as a share of the peak rate.

    With N steps and W warm-up steps, the schedules are:

    - linear: (s + 1) / (W + 1) in the warm-up steps, 1 at step W, then down to 1 / (N - W) at the
      last step N - 1.
    - cosine: the same warm-up, then half a cosine from 1 at step W towards 0 at step N.
    - average: the same warm-up, then 1.
    - tuned_lens: s / W in the warm-up steps, then linear from 1 at step W to 0 at step N - W, as
      in the library tuned-lens. In step 0 and the last W steps the rate is 0.
    """
    steps = config.steps
    warmup = config.warmup
    if config.schedule == "tuned_lens":
        if step < warmup:
            return step / warmup
        return max(0.0, (steps - warmup - step) / max(steps - 2 * warmup, 1))

    if step < warmup:
        return (step + 1) / (warmup + 1)
    if config.schedule == "average":
        return 1.0
    progress = (step - warmup) / (steps - warmup)
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    return 1 - progress


def momenta_per_weight(config: StitchConfig) -> int:
    """Return how many numbers the optimiser stores for each weight."""
    if config.optimizer == "adam":
        return ADAM_MOMENTA
    return int(config.momentum > 0)


def peak_rate(config: StitchConfig, width: int) -> float:
    """Return the peak learning rate of the optimiser for a φ that reads states of this width.

    For SGD it is the setting lr, or lr (1 - momentum) as in tuned-lens. For Adam it is
    lr / √width: Adam moves each entry by about its rate, and the entries of an isometry have
    sizes of about 1 / √width.
    """
    if config.optimizer == "adam":
        return config.peak / math.sqrt(width)
    if config.scale_lr_by_momentum:
        return config.peak * (1 - config.momentum)
    return config.peak
