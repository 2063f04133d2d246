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
        """Return a weight in this basis of the stream, with the gains that it reads folded in.

        A weight that neither reads nor writes the stream is returned as it is.
        """
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
            # What a gain of 0 hides has no effect, and comes back as 0.
            return (weight @ self.axes.T) / gains.where(gains != 0, torch.inf)
        if name in self.writers:
            return self.axes @ weight
        return weight


# The basis of each model, which is found once.
_bases: WeakKeyDictionary[FrozenModel, StreamBasis | None] = WeakKeyDictionary()


@torch.no_grad()
def stream_basis(model: FrozenModel) -> StreamBasis | None:
    """Return the principal axes of what a model writes to its stream.

    Tried on SmolLM2 and Gemma: along the axes of what is read, or of the embedding alone, the
    large directions that blocks write are spread over many axes, so that nothing remains of a copy
    of 4 bits, and readings rise by up to .8.

    Which weights read the stream and which write to it is seen in a pass, and is proved: a copy of
    the model that is expressed in the basis has rotated states. The result is None if the stream
    cannot be rotated: where norms subtract a mean, where the output of a norm is added to the
    stream, or where the embedding of positions or anything else has a basis of its own.
    """
    if model not in _bases:
        _bases[model] = _find_basis(model)
    return _bases[model]


def _find_basis(model: FrozenModel) -> StreamBasis | None:
    """Return the basis of a model, or None if it is not proved.

    All linear maps with outputs of the stream's width that read no norm are taken to write to the
    stream, until the proof.
    """
    paths = {module: path for path, module in model.module.named_modules()}
    embedding = embedding_of(model.module)
    tokens = _tried_tokens(model)
    norms = _norms_that_are_read(model, tokens)
    if not norms or embedding.shape[1] != model.d_model:
        return None
    writers = []
    for module, path in paths.items():
        if not isinstance(module, nn.Linear) or module in norms:
            continue
        if module.out_features == model.d_model:
            writers.append(f"{path}.weight")
    weights = dict(model.module.named_parameters())
    (embedding_name,) = [name for name, weight in weights.items() if weight is embedding]
    basis = StreamBasis(
        axes=_principal_axes([embedding.T, *(weights[name] for name in writers)]),
        gains={f"{paths[module]}.weight": norm.gains for module, norm in norms.items()},
        norms=frozenset(paths[norm.module] for norm in norms.values()),
        writers=frozenset(writers),
        embedding=embedding_name,
    )
    if not _is_proved(model, basis, tokens):
        return None
    return basis


def _principal_axes(written: Sequence[Float[Tensor, "d _"]]) -> Float[Tensor, "d d"]:
    """Return the principal axes, as columns, of the directions in which columns of matrices point.

    They are eigenvectors of the mean of u u^T over the unit vectors u along the columns, in the
    order of ascending eigenvalues. The length of a column says nothing: a hidden unit may be
    computed larger, and its column be shorter. Matrices count the same, however many columns they
    have.
    """
    width = len(written[0])
    moments = torch.zeros(width, width, device=written[0].device)
    for matrix in written:
        for columns in matrix.split(COLUMNS_AT_ONCE, dim=1):
            directions = nn.functional.normalize(columns.float(), dim=0)
            moments += directions @ directions.T / matrix.shape[1]
    axes: Tensor = torch.linalg.eigh(moments.double().cpu()).eigenvectors
    return axes.float().to(written[0].device)


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
    """Return the norm whose output each linear map reads, by the linear map.

    The input of such a map is the very tensor that the norm returned. Maps that read anything else
    are left out.
    """
    # By address. The tensors are held, so that no other one gets the address of one of them.
    outputs: dict[int, tuple[Tensor, RmsNorm]] = {}
    norms: dict[nn.Module, RmsNorm] = {}

    def note_norm(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        states = inputs[0] if len(inputs) == 1 else None
        if isinstance(states, Tensor) and isinstance(output, Tensor):
            gains = _gains_of(states, output, model.d_model)
            if gains is not None:
                outputs[output.data_ptr()] = (output, RmsNorm(module, gains))

    def note_linear_map(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs and inputs[0].data_ptr() in outputs:
            _, norm = outputs[inputs[0].data_ptr()]
            norms[module] = norm

    with ExitStack() as hooks:
        for module in model.module.modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_pre_hook(note_linear_map))
            elif _has_vectors_alone(module):
                hooks.enter_context(module.register_forward_hook(note_norm))
        model.full(tokens)
    return norms


def _has_vectors_alone(module: nn.Module) -> bool:
    """Return whether a module has no modules inside, and weights all of which are vectors.

    A norm is such a module.
    """
    weights = list(module.parameters(recurse=False))
    if not weights or any(module.children()):
        return False
    return all(weight.dim() == 1 for weight in weights)


def _gains_of(states: Tensor, output: Tensor, width: int) -> Float[Tensor, " d"] | None:
    """Return g if the output is g ∘ x / rms(x) of each state x; None if it is anything else.

    g is the least-squares fit for each dimension.

    Args:
        states: The input of the module, (..., d).
        output: Its output.
        width: The width of the stream, which d must be.
    """
    if states.shape != output.shape or states.shape[-1] != width:
        return None
    normalised = _divided_by_rms(states).reshape(-1, width)
    rows = output.float().reshape(-1, width)
    gains: Tensor = (rows * normalised).sum(0) / normalised.square().sum(0).clamp(
        min=SMALLEST_NONZERO
    )
    is_rms_norm = (rows - gains * normalised).norm() < SAME_FUNCTION * rows.norm()
    return gains if is_rms_norm else None


def _divided_by_rms(states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    """Return x / rms(x) of each state x, in float32; a state of zeros stays zero."""
    floats = states.float()
    return floats / floats.square().mean(-1, keepdim=True).sqrt().clamp(min=SMALLEST_NONZERO)


def _is_proved(model: FrozenModel, basis: StreamBasis, tokens: Int[Tensor, "b t"]) -> bool:
    """Return whether a copy of a model that is expressed in a basis has rotated states.

    Weights, and the bias of each writer, are expressed in the basis, and gains are folded into
    what reads them. After each block, the states of the copy must be those of the model, rotated.
    """
    layers = list(range(model.n_layers))
    module = deepcopy(model.module)
    for name, weight in module.named_parameters():
        if weight.dim() == 2:
            weight.copy_(basis.expressed(name, weight.float()))
    for name in basis.writers:
        bias = module.get_submodule(name.removesuffix(".weight")).bias
        if isinstance(bias, Tensor):
            bias.copy_(bias.float() @ basis.axes)
    rotated_model = variant(model, module, f"{model.name} (rotated)", is_proved=True)
    with _without_gains(rotated_model, basis):
        states_of_copy = rotated_model.residuals(tokens, layers)
    states = model.residuals(tokens, layers)
    for state_of_copy, state in zip(states_of_copy, states, strict=True):
        difference = state_of_copy.float() - state.float() @ basis.axes
        if not difference.norm() < SAME_FUNCTION * state.float().norm():
            return False
    return True


@contextmanager
def _without_gains(model: FrozenModel, basis: StreamBasis) -> Iterator[None]:
    """Let norms of a basis return x / rms(x) of each state x while the context is open.

    In this model their gains are folded into the weights that read them.
    """

    def normalise(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return _divided_by_rms(inputs[0]).to(output.dtype)

    with ExitStack() as hooks:
        for path in basis.norms:
            module = model.module.get_submodule(path)
            hooks.enter_context(module.register_forward_hook(normalise))
        yield
