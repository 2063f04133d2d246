"""Sources with exactly the target's information: its states through invertible affine maps."""

from __future__ import annotations

import math

import torch

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import States

SCALE_RATIO = 100.0  # the largest scale of a dimension over the smallest
CONDITION = 30.0  # the largest singular value of an affine map over the smallest


def rotated(materials: Materials) -> States:
    """Return the target's states through a random orthogonal map."""
    rotation = materials.orthogonal_for("rotated")
    return lambda rows: materials.target_states(rows) @ rotation


def rescaled(materials: Materials) -> States:
    """Return the target's states with permuted dimensions, each at a log-uniform random scale.

    The largest scale is at most `SCALE_RATIO` times the smallest.
    """
    generator = torch.Generator().manual_seed(materials.seed_for("rescaled"))
    order = torch.randperm(materials.width, generator=generator).to(materials.device)
    uniform = torch.rand(materials.width, generator=generator)
    exponents = uniform.to(materials.device, materials.dtype) - 0.5  # so that 1 is in the middle
    return lambda rows: materials.target_states(rows)[..., order] * SCALE_RATIO**exponents


def through_affine(materials: Materials, condition: float) -> States:
    """Return the target's states after a random affine map.

    The singular values of its matrix lie log-evenly from 1 to `condition`.
    """
    left = materials.orthogonal_for("affine, left")
    right = materials.orthogonal_for("affine, right")
    singular_values = torch.logspace(
        0, math.log10(condition), materials.width, dtype=left.dtype, device=left.device
    )
    weight = left * singular_values @ right  # left · diag(singular values) · right
    shift = materials.spread * materials.normals_for("affine, shift", materials.width)
    return lambda rows: materials.target_states(rows) @ weight + shift


def whitened(materials: Materials) -> States:
    """Return the target's states as principal components, each scaled to variance 1.

    Components and variances are those of the states on the rows that maps are fitted on.
    """
    _, covariance = materials.moments
    variances, vectors = torch.linalg.eigh(covariance)
    weight = (vectors / variances.sqrt()).to(materials.dtype)
    return lambda rows: materials.centred_states(rows) @ weight
