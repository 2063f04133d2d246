"""What the sources of a court are made from: a layer of a target, and text.

A court tests measures of similarity on sources of known similarity: models, or anything else that
returns states, which are compared with the states of one layer of the target.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.court.source import CachedStates, Source, Tokens, states_after
from thinkalike.models.frozen import FrozenModel
from thinkalike.training.data import StepData
from thinkalike.training.module import SteppedModule

Train = Callable[[SteppedModule, StepData, str], None]
"""Trains a module to the end, under a name."""


@dataclass(frozen=True, eq=False)
class Materials:
    """What sources are made from.

    Attributes:
        target: The model that sources are more or less similar to.
        layer: The number of its block after which its states are taken.
        fit_rows: Rows of tokens that maps are fitted on.
        evaluation_rows: Rows of tokens that scores are computed on. A source learns nothing from
            them but which tokens occur.
        evaluation_documents: The document of each token of these rows.
        other_rows: Rows of further documents, from which a source itself learns.
        seed: The seed of all random numbers.
        train: Trains a module.
        siblings: Models that were trained differently, by what is different.
    """

    target: FrozenModel
    layer: int
    fit_rows: Int[Tensor, "rows t"]
    evaluation_rows: Int[Tensor, "some t"]
    evaluation_documents: Int[Tensor, "some t"]
    other_rows: Int[Tensor, "more t"]
    seed: int
    train: Train
    siblings: Mapping[str, FrozenModel] = field(default_factory=dict)

    @cached_property
    def target_source(self) -> Source:
        """The target's own states as a source."""
        states = CachedStates(lambda rows: states_after(self.target, self.layer, rows))
        return Source("itself", "same", states, self.target)

    def target_states(self, rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the target's states of rows of tokens; those of known rows are cached."""
        return self.target_source.residuals(rows, [0])[0]

    @property
    def width(self) -> int:
        """The width of the target's states."""
        return int(self.target_source.d_model)

    @property
    def device(self) -> torch.device:
        """The device of the target's states."""
        return self.target_source.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the target's states, which is at least float32."""
        return self.target_source.dtype

    @cached_property
    def mean_and_covariance(self) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
        """Mean and covariance of the target's states on the fit rows, in float64."""
        states = self.target_states(self.fit_rows).flatten(0, 1).double()
        return states.mean(0), states.T.cov()

    @property
    def mean(self) -> Float[Tensor, " d"]:
        """The mean of the target's states on the fit rows, in their dtype."""
        mean, _ = self.mean_and_covariance
        return mean.to(self.dtype)

    @property
    def standard_deviations(self) -> Float[Tensor, " d"]:
        """The standard deviation of each dimension of the target's states on the fit rows."""
        _, covariance = self.mean_and_covariance
        return covariance.diagonal().sqrt().to(self.dtype)

    def centred_states(self, rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the target's states minus their mean on the fit rows."""
        return self.target_states(rows) - self.mean

    def seed_for(self, purpose: str) -> int:
        """Return a seed for one purpose: a checksum of the purpose, in any words, and `seed`.

        Random numbers for different purposes are therefore independent.
        """
        return zlib.crc32(f"{self.seed} {purpose}".encode())

    def normals_for(self, purpose: str, *shape: int) -> Float[Tensor, "*shape"]:
        """Return standard normal numbers, drawn with a seed for one purpose.

        The same purpose gives the same numbers each time. They have the device and dtype of the
        states.
        """
        generator = torch.Generator().manual_seed(self.seed_for(purpose))
        return torch.randn(shape, generator=generator).to(self.device, self.dtype)

    def orthogonal_for(self, purpose: str) -> Float[Tensor, "d d"]:
        """Return a random orthogonal matrix of the width of the target's states.

        Its seed is derived from `purpose`: the same purpose gives the same matrix each time, and
        different purposes give independent ones. It is the Q of the QR decomposition of a matrix
        of normal numbers, which is uniformly (Haar) distributed except for the signs of its
        columns: these are left as the decomposition chooses them.

        Args:
            purpose: Any text that says what the matrix is for.
        """
        square = self.normals_for(purpose, self.width, self.width)
        return torch.linalg.qr(square.double()).Q.to(self.dtype)
