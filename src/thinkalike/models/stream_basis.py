"""The basis of a model's residual stream in which its weights are rounded.

A model whose norms divide by the length of the stream, as RMSNorm does, computes the same in every
rotated basis of its stream (Ashkboos et al. 2024, arXiv:2404.00456). The principal axes of what is
written to the stream rotate with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from thinkalike.models.frozen import FrozenModel
from thinkalike.models.module_facts import embedding_of
from thinkalike.models.variants import variant

# The columns of a matrix that are added to moments at once.
COLUMNS_AT_ONCE = 2**13

# Smaller numbers count as zero.
SMALLEST_NONZERO = torch.finfo(torch.float32).tiny

# The rows, and the tokens of each, that show how a model reads and writes its stream.
TRIED_ROWS = 2
TRIED_TOKENS = 16

# The relative difference of states of one model in two bases; of two functions it is about 1.
SAME_FUNCTION = 0.05


@dataclass(frozen=True)
class StreamBasis:
    """An orthonormal basis of the residual stream, and the weights that read it or write to it.

    Attributes:
        axes: The axes of the basis, as columns.
        gains: The gains of the norm whose output each weight (outputs, d) reads, by the name of
            the weight.
        norms: The paths of these norms.
        writers: The names of weights (d, inputs) whose output is added to the stream.
        embedding: The name of the weight (vocabulary, d) of the token embedding.
    """

    axes: Float[Tensor, "d d"]
    gains: dict[str, Float[Tensor, " d"]]
    norms: frozenset[str]
    writers: frozenset[str]
    embedding: str

    def expressed(self, name: str, weight: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """Return a weight as it is in this basis of the residual stream.

        With the axes A, the embedding E becomes E A, and a weight W that writes to the stream
        becomes A^T W. A weight that reads the output of a norm becomes W diag(g) A, with the gains
        g of this norm. Any other weight is returned as it is.

        Args:
            name: The name of the weight in the model, which tells whether it reads or writes.
            weight: The weight, (out, in), or the embedding, (vocabulary, d).
        """
        axes = self.axes.to(weight.device)  # a model may be on several devices
        if name == self.embedding:
            return weight @ axes
        if name in self.gains:  # it reads the stream, through a norm
            return (weight * self.gains[name].to(weight.device)) @ axes
        if name in self.writers:
            return (axes.T @ weight).contiguous()
        return weight

    def restored(self, name: str, weight: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """Return a weight in the model's own basis, given the weight in this basis.

        It is the inverse of `expressed`: gains of a norm are divided out again. `name` is the name
        of the weight in the model.
        """
        axes = self.axes.to(weight.device)
        if name == self.embedding:
            return weight @ axes.T
        if name in self.gains:
            gains = self.gains[name].to(weight.device)
            # Entries that a gain of 0 multiplies have no effect: they become 0.
            divisors = gains.where(gains != 0, torch.inf)
            return (weight @ axes.T) / divisors
        if name in self.writers:
            return axes @ weight
        return weight


# The basis of each model, which is found once.
_bases: WeakKeyDictionary[FrozenModel, StreamBasis | None] = WeakKeyDictionary()


@torch.no_grad()
def stream_basis(model: FrozenModel) -> StreamBasis | None:
    """Return an orthonormal basis of a model's residual stream: the principal axes of its writers.

    A writer is a weight whose output is added to the stream, or the embedding. None means that the
    stream cannot be rotated without changing what the model computes: norms subtract a mean, the
    output of a norm is added to the stream, or something such as an embedding of positions depends
    on the coordinates.

    A forward pass shows which weights read and write the stream. This is then proved: the states
    of a copy of the model in this basis must be the model's own states, rotated.

    Other axes were tried on SmolLM2 and Gemma: those of the weights that read, and those of the
    embedding alone. They spread the large directions that blocks write over many axes, so that
    copies rounded to 4 bits along them no longer resemble the model, and equivalent bit widths
    that are measured by such copies are up to .8 bits larger.
    """
    if model not in _bases:
        _bases[model] = _find_basis(model)
    return _bases[model]


def _find_basis(model: FrozenModel) -> StreamBasis | None:
    """Return the basis of a model's stream, or None if the stream cannot be rotated.

    The stream is what blocks add their outputs to. The axes of the basis are the principal axes
    of all that is written to the stream: embeddings, and the outputs of linear maps.

    A linear map is assumed to read the stream if its input is the output of a norm, and to write
    to it if it reads no norm and its output has the width of the stream. Whether these assumptions
    hold is then tried: a copy of the model in this basis must have the same states. A stream
    cannot be rotated if they do not hold, if no linear map reads a norm, or if embeddings have
    another width than the stream.
    """
    paths = {module: path for path, module in model.module.named_modules()}
    embedding = embedding_of(model.module)
    tokens = _tried_tokens(model)
    norm_of_map = _norms_that_are_read(model, tokens)  # for each linear map, the norm it reads
    if not norm_of_map or embedding.shape[1] != model.d_model:
        return None
    writers = []
    for module, path in paths.items():
        reads_norm = module in norm_of_map
        if not isinstance(module, nn.Linear) or reads_norm:
            continue
        if module.out_features == model.d_model:
            writers.append(f"{path}.weight")
    weights = dict(model.module.named_parameters())
    # `named_parameters` lists a shared weight once, so there is exactly one name.
    (embedding_name,) = [name for name, weight in weights.items() if weight is embedding]
    # By the weight of the linear map, since it takes up the gains of the norm that it reads.
    gains = {f"{paths[module]}.weight": norm.gains for module, norm in norm_of_map.items()}
    basis = StreamBasis(
        axes=_principal_axes([embedding.T, *(weights[name] for name in writers)]),
        gains=gains,
        norms=frozenset(paths[norm.module] for norm in norm_of_map.values()),
        writers=frozenset(writers),
        embedding=embedding_name,
    )
    if not _gives_same_states(model, basis, tokens):
        return None
    return basis


def _principal_axes(written: Sequence[Float[Tensor, "d _"]]) -> Float[Tensor, "d d"]:
    """Return the principal axes, as columns, of the directions of all columns of some matrices.

    They are the eigenvectors, by ascending eigenvalue, of Σ mean(u u^T). The sum is over the
    matrices, and the mean over the columns u of a matrix, scaled to length 1. Lengths of columns
    are ignored since a hidden unit may have larger values and a shorter column instead, and every
    matrix has the same weight, however many columns it has.

    Args:
        written: The matrices (d, n), whose columns are written to the residual stream.
    """
    width = len(written[0])
    device = written[0].device
    moments = torch.zeros(width, width, device=device)
    for matrix in written:
        n_columns = matrix.shape[1]
        for columns in matrix.split(COLUMNS_AT_ONCE, dim=1):
            directions = nn.functional.normalize(columns.float(), dim=0)
            moments += (directions @ directions.T / n_columns).to(device)
    axes: Tensor = torch.linalg.eigh(moments.double().cpu()).eigenvectors
    return axes.float().to(device)


def _tried_tokens(model: FrozenModel) -> Int[Tensor, "b t"]:
    """Return token ids that are equally spaced over the vocabulary, on the model's device."""
    length = min(TRIED_TOKENS, model.context)
    tokens = torch.linspace(0, model.vocabulary - 1, TRIED_ROWS * length).long()
    return tokens.reshape(TRIED_ROWS, length).to(model.device)


class RmsNorm(NamedTuple):
    """A module that returns g ∘ x / rms(x) of each state x.

    Attributes:
        module: The module.
        gains: The gains g.
    """

    module: nn.Module
    gains: Float[Tensor, " d"]


def _norms_that_are_read(
    model: FrozenModel, tokens: Int[Tensor, "b t"]
) -> dict[nn.Module, RmsNorm]:
    """Return, for each linear map that reads the output of an RMSNorm, this norm.

    They are found in a pass over `tokens`: the input of the map must be the very tensor that the
    norm returned. Maps that read anything else are left out.
    """
    # The output of each norm by its address in memory. The tensors are kept, so that no other
    # tensor can get such an address during the pass.
    outputs: dict[int, tuple[Tensor, RmsNorm]] = {}
    norm_of_map: dict[nn.Module, RmsNorm] = {}

    def note_norm(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        """Note the output of a module that turns out to be an RMSNorm, as a hook after it."""
        states = inputs[0] if len(inputs) == 1 else None
        if isinstance(states, Tensor) and isinstance(output, Tensor):
            gains = _gains_of(states, output, model.d_model)
            if gains is not None:
                outputs[output.data_ptr()] = (output, RmsNorm(module, gains))

    def note_linear_map(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Note the norm whose output a linear map reads, as a hook before the map."""
        if inputs and inputs[0].data_ptr() in outputs:
            _, norm = outputs[inputs[0].data_ptr()]
            norm_of_map[module] = norm

    with ExitStack() as hooks:
        for module in model.module.modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_pre_hook(note_linear_map))
            elif _has_only_vectors(module):  # it may be a norm
                hooks.enter_context(module.register_forward_hook(note_norm))
        model.full(tokens)
    return norm_of_map


def _has_only_vectors(module: nn.Module) -> bool:
    """Return whether a module may be a norm: all of its weights are vectors.

    It must have at least one weight, and no submodules.
    """
    weights = list(module.parameters(recurse=False))
    if not weights or any(module.children()):
        return False
    return all(weight.dim() == 1 for weight in weights)


def _gains_of(states: Tensor, output: Tensor, width: int) -> Float[Tensor, " d"] | None:
    """Return the gains of an RMSNorm, given the input and output of a module, or None.

    The gains g are the least-squares fit of output = g * x / rms(x), in each dimension, to all
    states x. None means that the module is no RMSNorm of the stream: the fit leaves more than
    rounding errors, or d is not `width`.

    Args:
        states: The input of the module, (..., d).
        output: The output of the module.
        width: The width of the residual stream.
    """
    if states.shape != output.shape or states.shape[-1] != width:
        return None
    normalised = _divided_by_rms(states).reshape(-1, width)  # (n, d)
    outputs = output.float().reshape(-1, width)  # (n, d)
    # The least-squares slope of outputs on normalised states, in each dimension.
    products = (outputs * normalised).sum(0)
    squares = normalised.square().sum(0).clamp(min=SMALLEST_NONZERO)
    gains: Tensor = products / squares
    residuals = outputs - gains * normalised
    is_rms_norm = residuals.norm() < SAME_FUNCTION * outputs.norm()
    return gains if is_rms_norm else None


def _divided_by_rms(states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    """Return x / rms(x) of each state x, in float32; a state of zeros stays zero."""
    floats = states.float()
    rms = floats.square().mean(-1, keepdim=True).sqrt()
    return floats / rms.clamp(min=SMALLEST_NONZERO)


def _gives_same_states(model: FrozenModel, basis: StreamBasis, tokens: Int[Tensor, "b t"]) -> bool:
    """Return whether a model computes the same states in another basis of its residual stream.

    A copy of the model gets its weights in this basis, and the biases of weights that write to the
    stream. Gains of norms are multiplied into the weights that read the norms. After each block,
    the copy's states for `tokens` must be those of the model, rotated, up to rounding.
    """
    layers = list(range(model.n_layers))
    module = deepcopy(model.module)
    for name, weight in module.named_parameters():
        if weight.dim() == 2:
            weight.copy_(basis.expressed(name, weight.float()))
    for name in basis.writers:
        bias = module.get_submodule(name.removesuffix(".weight")).bias
        if isinstance(bias, Tensor):
            bias.copy_(bias.float() @ basis.axes.to(bias.device))
    # The check that a model can be cut at its blocks is skipped: `model` passed it.
    rotated_model = variant(model, module, f"{model.name} (rotated)", is_proved=True)
    with _without_gains(rotated_model, basis):
        states_of_copy = rotated_model.residuals(tokens, layers)
    states = model.residuals(tokens, layers)
    for state_of_copy, state in zip(states_of_copy, states, strict=True):
        difference = state_of_copy.float() - state.float() @ basis.axes.to(state.device)
        if not difference.norm() < SAME_FUNCTION * state.float().norm():
            return False
    return True


@contextmanager
def _without_gains(model: FrozenModel, basis: StreamBasis) -> Iterator[None]:
    """Make the norms of the basis return x / rms(x), for a state x, while the context is open.

    A norm of the model returns gain * x / rms(x). The gains are left out, since the weights of
    `model` that read the norms' outputs have been multiplied by them.

    Args:
        model: The model, with its weights expressed in the basis.
        basis: A basis of the residual stream; only the paths of its norms are used.
    """

    def normalise(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Replace the output of a norm, as a hook after it."""
        return _divided_by_rms(inputs[0]).to(output.dtype)

    with ExitStack() as hooks:
        for path in basis.norms:
            module = model.module.get_submodule(path)
            hooks.enter_context(module.register_forward_hook(normalise))
        yield
