"""What the judges of a court look at: a source's states, its maps to the target, and how the target goes on from them.

All of a source is computed once, when the first judge asks for it; all of the target once for all sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.config import StitchConfig
from thinkalike.court.source import Setting, Source
from thinkalike.evaluation import BATCH_TOKENS, next_token_losses
from thinkalike.measures import AffineMap, Moments, least_squares, token_kl
from thinkalike.training import StitchTraining

SAMPLE, SAMPLES = 1024, 4  # tokens of measures of all pairs of tokens, and how many such sets they are averaged over
CUTOFF = 1e-10  # a direction with less than this share of the largest variance is not made larger by whitening

Map = Callable[[Tensor], Tensor]


class Course(NamedTuple):
    """How the target goes on from mapped states, as means over the predicted tokens of the report."""

    penalty: float  # loss minus the target's own, in nats
    kl: float  # of the target's own output from the stitched one's, in nats
    distances: list[float]  # |h - t| / |t| at the cut and after each later block, with t the target's own state


@dataclass(frozen=True, eq=False)
class Bench:
    """A setting with all that is the same for every source.

    Attributes:
        recipe: how a map is trained that starts from least squares; of its own steps and rates only.
    """

    setting: Setting
    recipe: StitchConfig

    @property
    def rows(self) -> Iterator[Int[Tensor, "b t"]]:
        """The rows of the report, batch by batch."""
        rows = self.setting.report.long()
        return iter(rows.split(max(BATCH_TOKENS // rows.shape[1], 1)))

    @cached_property
    def own(self) -> list[tuple[list[Tensor], Tensor]]:
        """The target's own states at the cut and after each later block, and its losses, batch by batch."""
        target, layers = self.setting.target, range(self.setting.layer, self.setting.target.n_layers)
        found = []
        for rows in self.rows:
            states = target.residuals(rows, layers)
            found.append((states, next_token_losses(target, [states[-1]], rows)[0]))
        return found

    @cached_property
    def samples(self) -> list[Int[Tensor, " n"]]:
        """Sets of tokens of the report by their numbers."""
        generator = torch.Generator().manual_seed(self.setting.number("samples"))
        order = torch.randperm(self.setting.report.numel(), generator=generator)
        return [part for part in order.split(SAMPLE) if len(part) == min(SAMPLE, len(order))][:SAMPLES]

    def course(self, source: Source, phi: Map) -> Course:
        """Return how the target goes on from the states of a source through a map."""
        setting, target = self.setting, self.setting.target
        sums: dict[str, Tensor] = {}
        for rows, (goals, losses) in zip(self.rows, self.own, strict=True):
            state = phi(source.residuals(rows, [0])[0]).to(target.device, target.dtype)
            states: list[Tensor] = []
            for layer, goal in enumerate(goals, setting.layer):
                state = target.advance(state, layer, layer + 1) if states else state
                states.append(((state - goal).norm(dim=-1) / goal.norm(dim=-1))[:, :-1])
            ends = [each[:, :-1].flatten(0, 1) for each in (state, goals[-1])]
            values = {
                "penalty": next_token_losses(target, [state], rows)[0] - losses,
                "kl": token_kl(ends[0], target.finish, ends[1]),
                **{f"distance {number}": distance for number, distance in enumerate(states)},
            }
            sums = {name: sums.get(name, 0) + value.double().sum() for name, value in values.items()}
        count = setting.report[:, 1:].numel()
        penalty, kl, *distances = (float(value) / count for value in sums.values())
        return Course(penalty, kl, distances)


class Evidence:
    """What is known of one source at a bench."""

    def __init__(self, source: Source, bench: Bench):
        self.source, self.bench, self.setting = source, bench, bench.setting

    @cached_property
    def states(self) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n e"]]:
        """The states of the source and of the target at all tokens of the report."""
        return self._both(self.setting.report)

    @cached_property
    def moments(self) -> Moments:
        """Statistics of both sides on the fit rows; the layer pair is (0, 0)."""
        moments = Moments([(0, 0)])
        for rows in self.setting.fit.split(max(BATCH_TOKENS // self.setting.fit.shape[1], 1)):
            source, target = self._both(rows)
            moments.update([source], [target])
        return moments

    def _both(self, rows: Int[Tensor, "b t"]) -> tuple[Tensor, Tensor]:
        return self.source.residuals(rows, [0])[0].flatten(0, 1), self.setting.own(rows).flatten(0, 1)

    @cached_property
    def forward(self) -> AffineMap:
        """The map of least squares from the source to the target."""
        return least_squares(self.moments, (0, 0))

    @cached_property
    def backward(self) -> AffineMap:
        """The map of least squares from the target to the source."""
        return least_squares(self.moments.exchanged(), (0, 0))

    @cached_property
    def start(self) -> Course:
        """How the target goes on from the map of least squares."""
        with torch.no_grad():
            return self.bench.course(self.source, self.forward)

    @cached_property
    def trained(self) -> Course:
        """How the target goes on from an affine map after a short training that starts from least squares.

        The source is whitened first, so that the training is the same in whatever coordinates its states come.
        """
        whitened, back = self._whitening()
        source, recipe = _Through(self.source, whitened), replace(self.bench.recipe, kind="affine", norm="none")
        module = StitchTraining(
            source,
            self.setting.target,
            [(0, self.setting.layer)],
            self.setting.fit,
            recipe,
            self.setting.number("order of training"),
        )
        start = self.forward
        weight = start.weight @ back
        module.stitches[0].start_from(weight, start(self._mean[None])[0])  # type: ignore[operator]
        self.setting.train(module, f"map of {self.source.name}")
        phi = module.to(self.setting.target.device).eval().stitches[0]
        with torch.no_grad():
            return self.bench.course(self.source, lambda states: phi(whitened(states)))

    @property
    def _mean(self) -> Float[Tensor, " d"]:
        return self.moments.of((0, 0)).mean_x

    def _whitening(self) -> tuple[AffineMap, Float[Tensor, "d d"]]:
        """Return W⁻¹(h - μ) with W the root of the covariance on the fit rows, and W."""
        statistics = self.moments.of((0, 0))
        values, vectors = torch.linalg.eigh(statistics.xx / (statistics.n - 1))
        roots = values.clamp(min=0).sqrt()
        inverse = torch.where(values > CUTOFF * values[-1], 1 / roots, 0)
        weight = vectors * inverse @ vectors.T
        return AffineMap(weight, -weight @ statistics.mean_x), vectors * roots @ vectors.T


class _Through:
    """A source whose states go through a map."""

    def __init__(self, source: Source, phi: AffineMap):
        self.source, self.phi = source, phi
        self.d_model, self.n_layers, self.vocabulary = len(phi.bias), source.n_layers, source.vocabulary
        self.device, self.dtype = source.device, source.dtype

    def residuals(self, rows: Tensor, layers: Sequence[int]) -> list[Tensor]:
        return [self.phi(state) for state in self.source.residuals(rows, layers)]
