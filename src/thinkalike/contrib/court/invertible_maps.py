"""Sources with exactly the target's information: its states through invertible affine maps."""

from __future__ import annotations

import math

import torch

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import StateFunction

SCALE_RATIO = 100.0  # the largest scale of a dimension over the smallest
CONDITION = 30.0  # the largest singular value of an affine map over the smallest


def rotated(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states after a random orthogonal map."""
    rotation = materials.orthogonal_for("rotated")
    return lambda rows: materials.target_states(rows) @ rotation


def rescaled(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states with permuted and rescaled dimensions.

    The scales are random and log-uniform. The largest scale is at most `SCALE_RATIO` times the
    smallest.
    """
    generator = torch.Generator().manual_seed(materials.seed_for("rescaled"))
    order = torch.randperm(materials.width, generator=generator).to(materials.device)
    uniform = torch.rand(materials.width, generator=generator)
    # Exponents from -1/2 to 1/2, so that scales lie on both sides of 1.
    exponents = uniform.to(materials.device, materials.dtype) - 0.5
    scales = SCALE_RATIO**exponents
    return lambda rows: materials.target_states(rows)[..., order] * scales


def through_affine(materials: Materials, condition: float) -> StateFunction:
    """Return a function of tokens: the target's states after a random affine map.

    The matrix of the map has singular values that are evenly spaced on a logarithmic scale from 1
    to `condition`, and random directions. The shift of each dimension is a normal number with the
    standard deviation of the target's states in this dimension.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        condition: The condition number of the matrix.
    """
    left = materials.orthogonal_for("affine, left")
    right = materials.orthogonal_for("affine, right")
    singular_values = torch.logspace(
        0, math.log10(condition), materials.width, dtype=left.dtype, device=left.device
    )
    weight = left * singular_values @ right  # left · diag(singular values) · right
    shift = materials.standard_deviations * materials.normals_for("affine, shift", materials.width)
    return lambda rows: materials.target_states(rows) @ weight + shift


def whitened(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's principal components, scaled to variance 1.

    Components and variances are those of the states on the rows that maps are fitted on.
    """
    _, covariance = materials.mean_and_covariance
    variances, vectors = torch.linalg.eigh(covariance)
    weight = (vectors / variances.sqrt()).to(materials.dtype)
    return lambda rows: materials.centred_states(rows) @ weight
