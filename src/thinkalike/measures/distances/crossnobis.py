"""Crossnobis distances, which noise does not bias, and the covariance of the noise."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import Count, Within, check_choice
from thinkalike.measures.distances.neural import GREATEST_SIZE, LEAST_SIZE
from thinkalike.measures.powers_of_two import power_of_two_below
from thinkalike.measures.row_groups import all_alike

NOISES = ("shrinkage", "diagonal", "none")


def crossnobis(
    runs: Annotated[Float[Tensor, "m n d"], Within(fewest=1)], noise: str = "shrinkage"
) -> Float[Tensor, "n n"]:
    """Return the crossnobis distance of every two stimuli, squared and per unit.

    d²_ij = 1 / (m (m - 1) d) Σ_{a≠b} (x_ai - x_aj)ᵀ Σ⁻¹ (x_bi - x_bj), over pairs of different
    runs a and b (Walther et al. 2016, eq. 6). The noise of two runs is independent and adds
    nothing on average, so values can be negative, and 0 on average means that two stimuli are
    equal.

    Σ is the covariance of units in the residuals of all runs from each stimulus's mean, with
    ν = n (m - 1) degrees of freedom; see `noise_covariance`. As it comes from the same runs, it
    adds a small constant to all distances: for noise=diagonal 4 / (m (ν - 2)) on average.

    Args:
        runs: The states of n stimuli in m ≥ 2 runs.
        noise: "shrinkage"; "diagonal": each unit's variance alone; or "none": Σ is the identity.

    Raises:
        ValueError: The noise is unknown, there is a single run, or a unit is constant over runs.
        torch.linalg.LinAlgError: The covariance cannot be inverted: noise="diagonal" always can.
    """
    check_choice("noise", noise, NOISES)
    m, _, d = runs.shape
    if m < 2:
        raise ValueError(f"runs has {m} run: give two or more")
    runs = runs.detach().double()

    # Squares of very small or very large numbers leave the range of float64. Powers of two change
    # no other digits. With a covariance, distances do not depend on the unit of any column.
    units = power_of_two_below(runs.abs().amax((0, 1)))
    if noise == "none":
        units = units.max().expand(d)
    runs = runs / units
    size = runs.square().mean((0, 1))
    runs = runs - runs.mean((0, 1))
    if noise != "none":
        runs = _whitened_runs(runs, size, noise)

    # Σ_{a≠b} x_a x_b' is the product of the totals less the products within runs.
    total = runs.sum(0)
    within_runs = torch.einsum("mid,mjd->ij", runs, runs)
    products = (total @ total.T - within_runs) / (m * (m - 1) * d)
    squared_norms = products.diagonal()
    distances = squared_norms[:, None] + squared_norms - 2 * products
    distances = ((distances + distances.T) / 2).fill_diagonal_(0)
    if noise != "none":
        return distances
    return _unscaled_products(distances, units[0], units[0], "runs")


def _whitened_runs(
    runs: Float[Tensor, "m n d"], size: Float[Tensor, " d"], noise: str
) -> Float[Tensor, "m n d"]:
    """Return the runs after a linear map that makes the noise of units independent, of variance 1.

    The noise is how the states of a stimulus differ between runs. With noise="diagonal" each unit
    is only divided by the standard deviation of its noise.

    Args:
        runs: The states of n stimuli in each of m runs, or repetitions, less the mean of each of
            the d units.
        size: The mean square of each unit before the mean was subtracted.
        noise: How the covariance Σ of the noise is estimated: "shrinkage" or "diagonal".

    Raises:
        ValueError: A unit is the same in all runs, up to rounding.
        torch.linalg.LinAlgError: The covariance cannot be inverted.
    """
    m, n, d = runs.shape
    residuals = runs - runs.mean(0)  # of each stimulus from its mean over runs: the noise
    is_constant = all_alike(residuals.square().mean((0, 1)), size, torch.float64)
    if is_constant.any():
        unit = int(is_constant.nonzero()[0])
        raise ValueError(
            f"unit {unit} is the same in all runs: leave it out, or choose noise=none"
        )
    degrees_of_freedom = n * (m - 1)
    covariance = noise_covariance(residuals.reshape(m * n, d), degrees_of_freedom)
    if noise == "diagonal":
        return runs / covariance.diagonal().sqrt()
    factor = torch.linalg.cholesky(covariance)  # L with L Lᵀ = Σ
    flat = runs.reshape(m * n, d)
    whitened: Tensor = torch.linalg.solve_triangular(factor, flat.T, upper=False)  # L⁻¹ x
    return whitened.T.reshape(m, n, d)


def noise_covariance(
    residuals: Annotated[Float[Tensor, "k d"], Within()], freedom: Count
) -> Float[Tensor, "d d"]:
    """Return the covariance of d units in k residuals, with shrunk covariances.

    Covariances are multiplied by 1 - λ, λ = Σ_{i≠j} Var(r_ij) / Σ_{i≠j} r_ij², cut to [0, 1]
    (Schäfer & Strimmer 2005), where r_ij and its variance are estimated as rsatoolbox does
    (`method="shrinkage_diag"`): with z the residuals over their standard deviations,
    r_ij = Σ z_i z_j / (k - 1) and Var(r_ij) = k / freedom² (Σ z_i² z_j² / (k - 1) - r_ij²).

    Args:
        residuals: Residuals, of mean 0.
        freedom: Their degrees of freedom.

    Raises:
        ValueError: A unit is constant, there are fewer than two residuals, or more degrees of
            freedom than residuals.
    """
    k, d = residuals.shape
    if k < 2:
        raise ValueError(f"residuals has shape {(k, d)}: give two rows or more")
    if freedom > k:
        raise ValueError(
            f"freedom={freedom} is more than the {k} residuals: give their degrees of freedom"
        )
    units = power_of_two_below(residuals.abs().amax(0))
    residuals = residuals / units
    covariance = residuals.T @ residuals / freedom
    variances = covariance.diagonal()
    constant_units = (variances <= 0).nonzero()[:, 0]
    if constant_units.numel():
        raise ValueError(f"unit {int(constant_units[0])} of residuals is constant: leave it out")

    z = residuals / variances.sqrt()
    r = z.T @ z / (k - 1)
    squares = z.square().T @ z.square() / (k - 1)
    is_off_diagonal = ~torch.eye(d, dtype=torch.bool, device=residuals.device)
    squared_correlations = r[is_off_diagonal].square().sum()
    shrinkage: Tensor | float = 1.0
    if squared_correlations > 0:
        variances_of_r = (squares - r.square())[is_off_diagonal].sum()
        shrinkage = (k / freedom**2 * variances_of_r / squared_correlations).clamp(0, 1)
    shrunk = torch.where(is_off_diagonal, covariance * (1 - shrinkage), covariance)
    return _unscaled_products(shrunk, units[:, None], units, "residuals")


def _unscaled_products(
    products: Float[Tensor, "n n"],
    row_units: Float[Tensor, "*#n"],
    column_units: Float[Tensor, "*#n"],
    name: str,
) -> Float[Tensor, "n n"]:
    """Return products of numbers in their own scale, after the numbers were divided by units.

    To stay within the range of floats, each number was divided by a unit, a power of two, before
    products were taken. Here these are multiplied by the units of both of their factors.

    Args:
        products: The products (i, j) of the divided numbers i and j.
        row_units: The unit of number i for each row, or one for all.
        column_units: The unit of number j for each column, or one for all.
        name: What the error calls the numbers.

    Raises:
        ValueError: The results, or sums of their squares, leave the range of float64.
    """
    values = products * row_units * column_units
    largest = float(values.abs().max())
    is_too_small = largest < LEAST_SIZE**2 and bool(products.any())  # and not all 0 before
    if largest < GREATEST_SIZE**2 and not is_too_small:
        return values
    size = float(row_units.max())
    raise ValueError(
        f"{name} are of the size {size:.0e}, and squares of such numbers leave the range of "
        f"float64: divide them by {size:.0e}"
    )
