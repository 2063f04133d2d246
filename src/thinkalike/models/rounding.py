"""Copies of a model with fewer bits, which do not depend on how the weights of the model are written.

Rounding each row of a matrix to a few levels is a property of the numbers in it, and many sets of numbers compute the
same. Two things make the copies of all of them the same:

- **Balance.** Rows and columns of each matrix are scaled to one root mean square before it is rounded, and back
  afterwards. Hidden units that are computed larger and read smaller, and gains of norms that are folded into the next
  matrices, then change nothing (Müller et al. 2025, arXiv:2509.22944, quantise balanced matrices for their smaller
  errors).
- **The basis of the stream.** A model whose norms divide by the length of the stream, as RMSNorm does, computes the
  same in every rotated basis of its stream (Ashkboos et al. 2024, arXiv:2404.00456). Its matrices are rounded along
  the principal axes of the directions that are written to the stream, which rotate with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from thinkalike.errors import ModelError
from thinkalike.memory import page_out
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import variant
from thinkalike.models.module_facts import embedding_of

ROWS = 2**13  # of a matrix that are rounded at once: the embedding is half of a small model
MOST_TURNS = 50  # of balancing rows and columns
BALANCED = 1e-4  # relative change of the sizes of columns in a turn, at which they count as found
SMALLEST = torch.finfo(torch.float32).tiny
TRIED_TOKENS = (
    2,
    16,
)  # rows, and tokens of each, that show how a model reads and writes its stream
SAME_FUNCTION = (
    0.05  # relative difference of states of one model in two bases; of two functions it is about 1
)


@dataclass(frozen=True)
class StreamBasis:
    """An orthonormal basis of the residual stream, and the weights that read the stream or write to it.

    Attributes:
        axes: The axes of the basis, as columns.
        gains: The gains of the norm whose output each weight (outputs, d) reads, by the name of the weight.
        norms: The names of these norms.
        writers: The names of weights (d, inputs) whose output is added to the stream.
        embedding: The name of the weight (vocabulary, d) of the token embedding.
    """

    axes: Float[Tensor, "d d"]
    gains: dict[str, Float[Tensor, " d"]]
    norms: frozenset[str]
    writers: frozenset[str]
    embedding: str

    def expressed(self, name: str, weight: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """Return a weight in this basis of the stream, with the gains that it reads folded in."""
        if name == self.embedding:
            return weight @ self.axes
        if name in self.gains:
            return (weight * self.gains[name]) @ self.axes
        if name in self.writers:
            return (self.axes.T @ weight).contiguous()
        return weight

    def restored(self, name: str, weight: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """Return a weight that `expressed` returned, or a rounded one, as the model has it."""
        if name == self.embedding:
            return weight @ self.axes.T
        if name in self.gains:
            gains = self.gains[name]
            return (weight @ self.axes.T) / gains.where(gains != 0, torch.inf)
        if name in self.writers:
            return self.axes @ weight
        return weight


def can_be_rounded(model: FrozenModel) -> bool:
    """Return whether all weights are numbers on one device: not whole numbers with scales, as 4bit and 8bit have."""
    is_spread = bool(getattr(model.module, "hf_device_map", None))
    return not is_spread and all(
        weight.is_floating_point() for weight in model.module.parameters()
    )


@torch.no_grad()
def rounded(model: FrozenModel, bits: int | float) -> FrozenModel:
    """Return a copy with weights of so many bits: each matrix is balanced, rounded by row, and scaled back.

    Rows of a balanced matrix have 2^bits - 1 values, equally apart, from -max |w| to max |w|; of a copy between two
    whole numbers of bits, such as 3.5, the steps lie between theirs. A matrix that reads the
    residual stream or writes to it is rounded in the basis that `stream_basis` returns.

    Raises:
        ModelError: The weights are quantised, or on several devices.
    """
    if not can_be_rounded(model):
        raise ModelError(
            f"{model.name} cannot be rounded; leave model.quantization and model.device_map out"
        )
    basis = stream_basis(model)
    steps = 2 ** (bits - 1) - 1
    page_out()
    module = deepcopy(model.module)
    page_out()
    for name, weight in module.named_parameters():
        if weight.dim() < 2:
            continue
        matrix = weight.reshape(
            -1, weight.shape[-1]
        )  # a copy where the order of the memory allows no view
        if basis is None:
            round_in_place(matrix, steps)
        else:
            expressed = basis.expressed(name, matrix.float())
            round_in_place(expressed, steps)
            matrix = basis.restored(name, expressed)
        weight.copy_(matrix.view_as(weight))
    return variant(model, module, f"{model.name} ({bits} bits)", is_proved=True)


def round_in_place(matrix: Float[Tensor, "n m"], steps: int | float) -> None:
    """Round each row of a balanced matrix to so many steps from 0 to its largest entry, and undo the balance."""
    row_sizes, column_sizes = balanced_sizes(matrix)
    for rows, sizes in zip(matrix.split(ROWS), row_sizes.split(ROWS), strict=True):
        scale = sizes[:, None] * column_sizes
        balanced = rows / scale
        step = balanced.abs().amax(1, keepdim=True).clamp(min=SMALLEST) / steps
        rows.copy_((balanced / step).round() * step * scale)


def balanced_sizes(
    matrix: Float[Tensor, "n m"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " m"]]:
    """Return sizes r and c so that matrix / (r c^T) has a root mean square of 1 in each row and each column.

    They are unique up to one factor, and found in turn (Sinkhorn 1967). Rows and columns of zeros have the size 1.
    """
    rows = torch.ones(matrix.shape[0], device=matrix.device)
    columns = torch.ones(matrix.shape[1], device=matrix.device)
    for _ in range(MOST_TURNS):
        before = columns
        of_columns = torch.zeros_like(columns)
        row_parts = []
        for part in matrix.split(ROWS):
            squares = part.float().square()
            mean_squares = (squares / before.square()).mean(1)
            row_parts.append(mean_squares.sqrt().where(mean_squares > SMALLEST, 1.0))
            of_columns += (squares / row_parts[-1].square()[:, None]).sum(0)
        rows = torch.cat(row_parts)
        mean_squares = of_columns / len(matrix)
        columns = mean_squares.sqrt().where(mean_squares > SMALLEST, 1.0)
        if (columns / before - 1).abs().max() < BALANCED:
            break
    return rows, columns


_bases: WeakKeyDictionary[FrozenModel, StreamBasis | None] = (
    WeakKeyDictionary()
)  # each is found once


@torch.no_grad()
def stream_basis(model: FrozenModel) -> StreamBasis | None:
    """Return the principal axes of what a model writes to its stream; None if its stream cannot be rotated.

    Tried on SmolLM2 and Gemma: along the axes of what is read, or of the embedding alone, the large directions that
    blocks write are spread over many axes, so that nothing is left of a copy of 4 bits, and readings rise by up to .8.

    Which weights read the stream and which write to it is seen in a pass, and is proved: a copy of the model that is
    expressed in the basis has rotated states. A stream cannot be rotated where norms subtract a mean, where the output
    of a norm is added to the stream, or where the embedding of positions or anything else has a basis of its own.
    """
    if model not in _bases:
        _bases[model] = _found_basis(model)
    return _bases[model]


def _found_basis(model: FrozenModel) -> StreamBasis | None:
    paths = {module: path for path, module in model.module.named_modules()}
    embedding = embedding_of(model.module)
    tokens = _tried_tokens(model)
    norms = _norms_that_are_read(model, tokens)
    if not norms or embedding.shape[1] != model.d_model:
        return None
    writers = [
        f"{path}.weight"
        for module, path in paths.items()
        if isinstance(module, nn.Linear)
        and module not in norms
        and module.out_features == model.d_model
    ]
    weights = dict(model.module.named_parameters())
    (embedding_name,) = [name for name, weight in weights.items() if weight is embedding]
    axes = _principal_axes([embedding.T, *(weights[name] for name in writers)])
    gains = {f"{paths[module]}.weight": norm.gains for module, norm in norms.items()}
    norm_paths = frozenset(paths[norm.module] for norm in norms.values())
    basis = StreamBasis(axes, gains, norm_paths, frozenset(writers), embedding_name)
    return basis if _is_proved(model, basis, tokens) else None


def _principal_axes(written: Sequence[Float[Tensor, "d _"]]) -> Float[Tensor, "d d"]:
    """Return the principal axes, as columns, of the directions in which columns of matrices point.

    The length of a column says nothing: a hidden unit may be computed larger, and its column be shorter.
    Matrices count the same, however many columns they have.
    """
    width = len(written[0])
    moments = torch.zeros(width, width, device=written[0].device)
    for matrix in written:
        for columns in matrix.split(ROWS, dim=1):
            directions = nn.functional.normalize(columns.float(), dim=0)
            moments += directions @ directions.T / matrix.shape[1]
    axes: Tensor = torch.linalg.eigh(moments.double().cpu()).eigenvectors
    return axes.float().to(written[0].device)


def _tried_tokens(model: FrozenModel) -> Int[Tensor, "b t"]:
    """Return some tokens, drawn from the whole vocabulary."""
    rows, length = TRIED_TOKENS
    length = min(length, model.context)
    tokens = torch.linspace(0, model.vocabulary - 1, rows * length).long()
    return tokens.reshape(rows, length).to(model.device)


class RmsNorm(NamedTuple):
    """A module that returns g ∘ x / rms(x) of each state x."""

    module: nn.Module
    gains: Float[Tensor, " d"]  # g


def _norms_that_are_read(
    model: FrozenModel, tokens: Int[Tensor, "b t"]
) -> dict[nn.Module, RmsNorm]:
    """Return the norm whose output each linear map reads: its input is the tensor that the norm returned."""
    outputs: dict[
        int, tuple[Tensor, RmsNorm]
    ] = {}  # by address; they are held, so that no other tensor gets theirs
    norms: dict[nn.Module, RmsNorm] = {}

    def note_norm(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        states = inputs[0] if len(inputs) == 1 else None
        if isinstance(states, Tensor) and isinstance(output, Tensor):
            gains = _gains_of(states, output, model.d_model)
            if gains is not None:
                outputs[output.data_ptr()] = (output, RmsNorm(module, gains))

    def note_linear_map(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs and inputs[0].data_ptr() in outputs:
            norms[module] = outputs[inputs[0].data_ptr()][1]

    hooks = []
    for module in model.module.modules():
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_pre_hook(note_linear_map))
        elif _has_vectors_alone(module):
            hooks.append(module.register_forward_hook(note_norm))
    try:
        model.full(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return norms


def _has_vectors_alone(module: nn.Module) -> bool:
    """Return whether a module has no modules inside, and weights all of which are vectors, as a norm has."""
    weights = list(module.parameters(recurse=False))
    return (
        not any(module.children())
        and bool(weights)
        and all(weight.dim() == 1 for weight in weights)
    )


def _gains_of(states: Tensor, output: Tensor, width: int) -> Float[Tensor, " d"] | None:
    """Return g if the output is g ∘ x / rms(x) of each state x; None if it is anything else."""
    if states.shape != output.shape or states.shape[-1] != width:
        return None
    normalised = _normalised(states).reshape(-1, width)
    rows = output.float().reshape(-1, width)
    gains: Tensor = (rows * normalised).sum(0) / normalised.square().sum(0).clamp(min=SMALLEST)
    is_rms_norm = (rows - gains * normalised).norm() < SAME_FUNCTION * rows.norm()
    return gains if is_rms_norm else None


def _normalised(states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    floats = states.float()
    return floats / floats.square().mean(-1, keepdim=True).sqrt().clamp(min=SMALLEST)


def _is_proved(model: FrozenModel, basis: StreamBasis, tokens: Int[Tensor, "b t"]) -> bool:
    """Return whether a copy of a model that is expressed in a basis has the states of the model in this basis."""
    layers = list(range(model.n_layers))
    page_out()
    module = deepcopy(model.module)
    for name, weight in module.named_parameters():
        if weight.dim() == 2:
            weight.copy_(basis.expressed(name, weight.float()))
    for name in basis.writers:
        bias = module.get_submodule(name.removesuffix(".weight")).bias
        if isinstance(bias, Tensor):
            bias.copy_(bias.float() @ basis.axes)
    rotated = variant(model, module, f"{model.name} (rotated)", is_proved=True)
    with _without_gains(rotated, basis):
        states = rotated.residuals(tokens, layers)
    expected = model.residuals(tokens, layers)
    return all(
        (found.float() - wanted.float() @ basis.axes).norm()
        < SAME_FUNCTION * wanted.float().norm()
        for found, wanted in zip(states, expected, strict=True)
    )


@contextmanager
def _without_gains(model: FrozenModel, basis: StreamBasis) -> Iterator[None]:
    """Let norms return x / rms(x) of each state x, as their gains are folded into what reads them."""

    def normalise(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return _normalised(inputs[0]).to(output.dtype)

    hooks = [
        model.module.get_submodule(path).register_forward_hook(normalise) for path in basis.norms
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
