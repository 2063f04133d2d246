"""What a court judges: a source is a function from tokens to states, and how alike it is to the target is known."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.measures.chance import STEP, mixed, shifted
from thinkalike.models.families import Layer
from thinkalike.models.frozen import FrozenModel
from thinkalike.training.run import StepData, SteppedModule

Tokens = Int[Tensor, "b t"]
States = Callable[[Tensor], Tensor]  # of tokens (b, t): states (b, t, d)


class Source:
    """A function from tokens to states, which has one layer, 0, and no unembedding: a `StateSource`.

    Its `kind` says how it is alike to the target, or why it is not. It reads text as the target does.
    """

    n_layers = 1
    layers = (0,)

    def __init__(self, name: str, kind: str, states: States, target: FrozenModel):
        self.name, self.kind, self._states = name, kind, states
        state = states(torch.zeros(1, 1, dtype=torch.long))
        self.d_model, self.device, self.dtype = state.shape[-1], state.device, state.dtype
        self.vocabulary = target.vocabulary
        self.tokenizer = target.tokenizer
        self.context = target.context
        self.revision = target.revision
        self.bos_each_row = target.bos_each_row
        self.identity = id(self)
        self.ids_fingerprint = target.ids_fingerprint
        self.encoded = target.encoded
        self.sampled_vocabulary = target.sampled_vocabulary
        self.embedded = target.embedded
        self.check_context = target.check_context

    def sites_at(self, layers: Iterable[int]) -> list[Layer]:
        return list(layers)

    def width(self, layer: Layer) -> int:
        return int(self.d_model)

    def parameters(self) -> int:
        return 0

    def fingerprint(self) -> str:
        return f"{self.name} {self.kind}"

    def describe(self) -> dict[str, str]:
        return {"name": self.name, "kind": self.kind}

    def residuals(
        self, rows: Tokens, layers: Sequence[Layer], mask: Tokens | None = None
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the states of these tokens, once for each time that layer 0 is asked for."""
        return [self._states(rows)] * len(layers)


class Remembered:
    """A function from rows of tokens to states that computes the states of each row once."""

    def __init__(self, states: States):
        self._states, self._rows = states, dict[bytes, Tensor]()

    @torch.no_grad()
    def __call__(self, rows: Tokens) -> Float[Tensor, "b t d"]:
        rows = rows.long().cpu()
        keys = [row.numpy().tobytes() for row in rows]
        new = list({key: place for place, key in enumerate(keys) if key not in self._rows}.values())
        for places in torch.tensor(new, dtype=torch.long).split(max(BATCH_TOKENS // rows.shape[1], 1)):
            if len(places):
                self._rows |= zip((keys[place] for place in places.tolist()), self._states(rows[places]), strict=True)
        return torch.stack([self._rows[key] for key in keys])


@dataclass(frozen=True, eq=False)
class Setting:
    """What sources are made from."""

    target: FrozenModel  # that they are more or less alike to
    layer: int  # the number of its block after which its states are taken
    fit: Int[Tensor, "rows t"]  # that maps are fitted on
    report: Int[Tensor, "some t"]  # that scores are of; a source learns nothing from them but which tokens occur
    documents: Int[Tensor, "some t"]  # the document of each token of the report
    other: Int[Tensor, "more t"]  # rows of further documents, from which a source itself learns
    seed: int  # of all that is drawn
    train: Callable[[SteppedModule, StepData, str], None]  # trains a module to the end, under a name
    siblings: Mapping[str, FrozenModel] = field(default_factory=dict)  # otherwise trained models, by the difference

    @cached_property
    def itself(self) -> Source:
        states = Remembered(lambda rows: stage(self.target, self.layer, rows))
        return Source("itself", "same", states, self.target)

    def own(self, rows: Tokens) -> Float[Tensor, "b t d"]:
        return self.itself.residuals(rows, [0])[0]

    @cached_property
    def moments(self) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
        """Mean and covariance of the target's own states on the fit rows, in float64."""
        states = self.own(self.fit).flatten(0, 1).double()
        return states.mean(0), states.T.cov()

    @property
    def spread(self) -> Float[Tensor, " d"]:
        return self.moments[1].diagonal().sqrt().to(self.itself.dtype)

    @property
    def mean(self) -> Float[Tensor, " d"]:
        return self.moments[0].to(self.itself.dtype)

    def number(self, purpose: str) -> int:
        """Return a seed for one purpose, which depends on nothing but that and the seed of the whole."""
        return zlib.crc32(f"{self.seed} {purpose}".encode())

    def drawn(self, purpose: str, *shape: int) -> Float[Tensor, "*shape"]:
        """Return standard normal numbers for one purpose, on the device of the states."""
        generator = torch.Generator().manual_seed(self.number(purpose))
        return torch.randn(shape, generator=generator).to(self.itself.device, self.itself.dtype)


def stage(model: FrozenModel, layer: Layer, rows: Tokens) -> Float[Tensor, "b t d"]:
    """Return a model's states after a block in at least float32."""
    state = model.residuals(rows, [layer])[0]
    return state.to(torch.promote_types(state.dtype, torch.float32))


# A code is a whole number that says on what noise depends: a token, a pair of tokens, or all tokens up to a place. The
# same codes give the same numbers in every call, in every order and on every device.

HALF = 2**32


def normals(codes: Int[Tensor, "*b"], width: int, seed: int) -> Float[Tensor, "*b d"]:
    """Return independent standard normal numbers for each code, of this width, in float32; other seeds give other ones.

    The two halves of 32 bits give two normal numbers by Box and Muller.
    """
    start = mixed(codes.long() * STEP + seed)
    places = torch.arange(1, (width + 1) // 2 + 1, device=codes.device)
    bits = mixed(start[..., None] + places * STEP)
    high, low = ((part & (HALF - 1)).double().add(0.5).div(HALF) for part in (shifted(bits, 32), bits))
    radius, angle = (-2 * high.log()).sqrt(), 2 * math.pi * low
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :width].float()


def prefixes(rows: Int[Tensor, "b t"], seed: int = 0) -> Int[Tensor, "b t"]:
    """Return a code for each place of a row, which depends on all tokens up to there and on no later one."""
    code = torch.full_like(rows[:, 0].long(), seed)
    found = []
    for column in rows.long().unbind(1):
        code = mixed((code + column + 1) * STEP)
        found.append(code)
    return torch.stack(found, 1)
