"""Copies of a model with fewer bits, which do not depend on how its weights are written.

Rounding each row of a matrix to a few levels is a property of the numbers in it, and many sets of
numbers compute the same. Two things make the copies of all of them the same:

- **Balance.** Rows and columns of each matrix are scaled to one root mean square before it is
  rounded, and back afterwards. Hidden units that are computed larger and read smaller, and gains
  of norms that are folded into the next matrices, then change nothing (Müller et al. 2025,
  arXiv:2509.22944, quantise balanced matrices for their smaller errors).
- **The basis of the stream.** A model whose norms divide by the length of the stream, as RMSNorm
  does, computes the same in every rotated basis of its stream (Ashkboos et al. 2024,
  arXiv:2404.00456). Its matrices are rounded along the axes of `stream_basis`, which rotate with
  it.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.errors import ModelError
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.stream_basis import SMALLEST_NONZERO, stream_basis
from thinkalike.models.variants import is_spread, variant

# The rows of a matrix that are rounded at once: the embedding is half of a small model.
ROWS_AT_ONCE = 2**13

# The most turns of balancing rows and columns.
MOST_TURNS = 50

# The relative change of the sizes of columns in a turn at which they count as found.
BALANCED_CHANGE = 1e-4


def can_be_rounded(model: FrozenModel) -> bool:
    """Return whether all weights of a model are floating-point numbers in memory.

    Weights that are quantised (model.quantization) are whole numbers with scales. Weights that
    accelerate has offloaded (model.device_map) come into memory for a moment of each pass, and
    have no values that could be changed.
    """
    weights = list(model.module.parameters())
    return all(weight.is_floating_point() and not weight.is_meta for weight in weights)


def is_rounded_unasked(model: FrozenModel) -> bool:
    """Return whether jobs round copies of a model to read bits, although nobody asked for copies.

    A model that is spread over several devices is left out: their memory may not hold a copy
    beside the models of the job.
    """
    return can_be_rounded(model) and not is_spread(model)


def check_can_be_rounded(model: FrozenModel) -> None:
    """Raise a ModelError if no copy with weights rounded to fewer bits can be made of a model.

    Quantised weights are rounded already, and weights that are offloaded, to the CPU or to a disk,
    are not there to be changed.
    """
    if not can_be_rounded(model):
        raise ModelError(
            f"{model.name} cannot be rounded; leave {named_setting('model.quantization')} out, "
            f"and {named_setting('model.device_map')} if it offloads weights"
        )


@torch.no_grad()
def rounded_copy(model: FrozenModel, bits: int | float) -> FrozenModel:
    """Return a copy of a model whose matrices are rounded to fewer bits; vectors are not.

    Rows and columns of each matrix are first scaled to one root mean square ("balanced"), and
    scaled back afterwards. In between, each row is rounded to 2^bits - 1 evenly spaced values from
    -max |w| to max |w|, for the entries w of the row. `bits` need not be whole. A matrix that
    reads or writes the residual stream is rounded in an orthonormal basis of the stream, if
    `stream_basis` finds one that leaves the model's function unchanged.

    Raises:
        ModelError: The weights are quantised, or offloaded.
    """
    check_can_be_rounded(model)
    basis = stream_basis(model)
    # The number of steps from 0 to the largest value, so that there are 2^bits - 1 values in all.
    steps = 2 ** (bits - 1) - 1
    module = deepcopy(model.module)
    for name, weight in module.named_parameters():
        if weight.dim() < 2:
            continue
        # A stack of matrices becomes one matrix. `reshape` may copy, so the rounded values are
        # copied back below in any case.
        matrix = weight.reshape(-1, weight.shape[-1])
        if basis is None:
            round_in_place(matrix, steps)
        else:
            matrix_in_basis = basis.expressed(name, matrix.float())
            round_in_place(matrix_in_basis, steps)
            matrix = basis.restored(name, matrix_in_basis)
        weight.copy_(matrix.view_as(weight))
    # It runs as the original does, so it need not be checked again that it can be cut at blocks.
    return variant(model, module, f"{model.name} ({bits} bits)", is_proved=True)


def round_in_place(matrix: Float[Tensor, "n m"], steps: int | float) -> None:
    """Round each row of a matrix to evenly spaced values, in place.

    Before rounding, the matrix is divided by a size for each row and column, so that all rows and
    columns have a root mean square of 1. Afterwards it is multiplied by these sizes again.

    Args:
        matrix: The matrix of n rows and m columns, which is changed.
        steps: The number of steps from 0 to the largest absolute entry of a row. It need not be
            whole.
    """
    row_sizes, column_sizes = balanced_sizes(matrix)
    slices = zip(matrix.split(ROWS_AT_ONCE), row_sizes.split(ROWS_AT_ONCE), strict=True)
    for rows, sizes_of_rows in slices:
        sizes = sizes_of_rows[:, None] * column_sizes  # (rows, columns)
        balanced = rows / sizes  # all rows and columns have a root mean square of 1
        largest_of_row = balanced.abs().amax(1, keepdim=True).clamp(min=SMALLEST_NONZERO)
        step = largest_of_row / steps
        rows.copy_((balanced / step).round() * step * sizes)


def balanced_sizes(
    matrix: Float[Tensor, "n m"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " m"]]:
    """Return sizes r of the rows and c of the columns that balance a matrix.

    Each row and column of matrix / (r c^T) has a root mean square of 1. Such sizes are unique up
    to a factor. They are computed alternately, r given c and then c given r (Sinkhorn 1967), at
    most MOST_TURNS times. A row or column of zeros has the size 1.
    """
    row_sizes = torch.ones(matrix.shape[0], device=matrix.device)
    column_sizes = torch.ones(matrix.shape[1], device=matrix.device)
    for _ in range(MOST_TURNS):
        # The sizes of rows, given those of columns.
        column_sizes_before = column_sizes
        # For each column: the sum of squares after the rows are divided by their new sizes.
        sums_over_rows = torch.zeros_like(column_sizes)  # (m,)
        sizes_of_slices = []
        for rows in matrix.split(ROWS_AT_ONCE):  # a few at once, since float32 takes memory
            squares = rows.float().square()
            mean_squares = (squares / column_sizes_before.square()).mean(1)  # of each row
            sizes = mean_squares.sqrt().where(mean_squares > SMALLEST_NONZERO, 1.0)
            sizes_of_slices.append(sizes)
            sums_over_rows += (squares / sizes.square()[:, None]).sum(0)
        row_sizes = torch.cat(sizes_of_slices)

        # The sizes of columns, given those of rows.
        mean_squares = sums_over_rows / len(matrix)  # of each column
        column_sizes = mean_squares.sqrt().where(mean_squares > SMALLEST_NONZERO, 1.0)
        if (column_sizes / column_sizes_before - 1).abs().max() < BALANCED_CHANGE:
            break
    return row_sizes, column_sizes
