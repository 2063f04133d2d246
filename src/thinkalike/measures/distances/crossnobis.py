"""Cross-validated squared Mahalanobis distances of stimuli that were measured several times (crossnobis)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

NOISES = ("shrinkage", "diagonal", "none")


def crossnobis(runs: Float[Tensor, "m n d"], noise: str = "shrinkage") -> Float[Tensor, "n n"]:
    """Return the crossnobis distance of every two stimuli, squared and per unit: 0 on average where they are alike.

    d²_ij = 1 / (m (m - 1) d) Σ_{a≠b} (x_ai - x_aj)ᵀ Σ⁻¹ (x_bi - x_bj), over pairs of different runs a and b (Walther et
    al. 2016, eq. 6). Noise of one run is independent of that of another, so it adds nothing on average, where it adds
    twice its variance to a squared distance within runs. Hence values can be negative, and 0 is a true zero. It is the
    mean over runs of that run against the mean of the others, as rsatoolbox has it.

    Σ is the covariance of units in the residuals of all runs from each stimulus's mean, with ν = n (m - 1) degrees of
    freedom; see `noise_covariance`. As it comes from the same runs, it adds a little to all distances alike: of
    noise=diagonal 4 / (m (ν - 2)) on average, which goes away with many stimuli.

    Args:
        runs: The measurements of n stimuli in m runs by d units.
        noise: shrinkage, diagonal (each unit's own variance alone), or none (Σ is the identity).

    Raises:
        ValueError: There are fewer than two runs, a value is not finite, the noise is unknown, or the covariance cannot
            be inverted.
    """
    if noise not in NOISES:
        raise ValueError(f"noise={noise!r} is none of {', '.join(NOISES)}")
    if len(runs) < 2:
        raise ValueError(f"crossnobis distances need two runs or more, not {len(runs)}")
    runs = runs.detach().double()
    if not runs.isfinite().all():
        raise ValueError("the measurements are not finite")
    runs = _prewhitened(runs - runs.mean((0, 1)), noise)
    m, _, d = runs.shape
    total = runs.sum(0)
    products = (total @ total.T - torch.einsum("mid,mjd->ij", runs, runs)) / (m * (m - 1) * d)
    own = products.diagonal()
    distances = own[:, None] + own - 2 * products
    return ((distances + distances.T) / 2).fill_diagonal_(0)


def noise_covariance(residuals: Float[Tensor, "k d"], freedom: int) -> Float[Tensor, "d d"]:
    """Return the covariance of d units in k residuals, with covariances shrunk towards 0 by Schäfer & Strimmer (2005).

    Covariances are multiplied by 1 - λ, λ = Σ_{i≠j} Var(r_ij) / Σ_{i≠j} r_ij², cut to [0, 1], where r_ij and its
    variance are estimated as rsatoolbox does (`method="shrinkage_diag"`): with z the residuals over their standard
    deviations, r_ij = Σ z_i z_j / (k - 1) and Var(r_ij) = k / freedom² (Σ z_i² z_j² / (k - 1) - r_ij²).

    Args:
        residuals: Residuals of mean 0.
        freedom: The degrees of freedom that they have.

    Raises:
        ValueError: A unit does not vary.
    """
    k, d = residuals.shape
    covariance = residuals.T @ residuals / freedom
    variances = covariance.diagonal()
    if (still := (variances <= 0).nonzero()[:, 0]).numel():
        raise ValueError(f"unit {int(still[0])} is the same in all runs: leave it out, or choose noise=none")
    standard = residuals / variances.sqrt()
    r, squares = standard.T @ standard / (k - 1), standard.square().T @ standard.square() / (k - 1)
    off = ~torch.eye(d, dtype=torch.bool, device=residuals.device)
    size = r[off].square().sum()
    share = (k / freedom**2 * (squares - r.square())[off].sum() / size).clamp(0, 1) if size > 0 else 1.0
    return torch.where(off, covariance * (1 - share), covariance)


def _prewhitened(runs: Float[Tensor, "m n d"], noise: str) -> Float[Tensor, "m n d"]:
    """Return measurements whose Euclidean inner products are those under Σ⁻¹."""
    if noise == "none":
        return runs
    m, n, d = runs.shape
    covariance = noise_covariance((runs - runs.mean(0)).reshape(m * n, d), n * (m - 1))
    if noise == "diagonal":
        return runs / covariance.diagonal().sqrt()
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:
        raise ValueError(
            f"the noise of {d} units has no inverse with {n * (m - 1)} degrees of freedom: choose noise=diagonal"
        )
    return torch.linalg.solve_triangular(factor, runs.reshape(m * n, d).T, upper=False).T.reshape(m, n, d)
