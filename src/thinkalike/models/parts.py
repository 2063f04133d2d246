"""The components of a model, such as one block's attention, and changes that undo themselves.

A component is one or several modules, so that it can be exchanged for that of another model of the
same architecture, whatever its weights are stored in: the module of the other model takes its
place.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from thinkalike.advice import named_setting
from thinkalike.errors import ModelError
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.module_facts import tensors_of

if TYPE_CHECKING:
    from peft.utils.other import ModulesToSaveWrapper

# What is looked for in the name of a module of a block, for each kind of component.
COMPONENTS = {
    "norms": r"norm|^ln",
    "attention": r"att",
    "MLP": r"mlp|ffn|feed_forward|moe|expert",
}

# The order of the components of a block, before all others.
BLOCK_ORDER = ("norms", "attention", "MLP")

# The names under which a module of PEFT has the module whose place it took.
NAMES_OF_WRAPPED = ("base_layer", "original_module", "token_adapter", "model")


@dataclass(frozen=True)
class Part:
    """The modules of a model that are one component of one layer.

    Attributes:
        component: "embedding", "attention", "MLP", "norms", "unembedding", or the name of another
            module of a block.
        layer: The block; -1 before the blocks, and their number after them.
        paths: The paths of the modules.
    """

    component: str
    layer: int
    paths: tuple[str, ...]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The names of its weights begin with one of these."""
        return tuple(f"{path}." for path in self.paths)

    def __str__(self) -> str:
        if self.component.endswith("embedding"):
            return self.component
        return f"{self.component} {self.layer}"


def parts_of(model: FrozenModel) -> list[Part]:
    """Return the parts of a model, such as the attention of one block, in the order of a pass.

    A part is all modules of one component (such as attention) in one layer. Each module with
    weights is in exactly one part. An unembedding that shares a weight with the embedding belongs
    to the part of the embedding.
    """
    # By (layer, component). The embedding counts as layer -1, and the unembedding as the layer
    # after the last one.
    paths_by_part = _paths_by_part(model)
    embedding = (-1, "embedding")
    unembedding = (model.n_layers, "unembedding")
    embedding_weights = _weight_ids(model.module, paths_by_part.get(embedding, ()))
    unembedding_weights = _weight_ids(model.module, paths_by_part.get(unembedding, ()))
    are_tied = bool(embedding_weights & unembedding_weights)
    if are_tied:
        paths_by_part[embedding] += paths_by_part.pop(unembedding)

    def position(key: tuple[int, str]) -> tuple[int, int, str]:
        """Return a key that sorts parts by layer, and then in the order inside a block."""
        layer, component = key
        # A component that BLOCK_ORDER lacks comes last.
        position_in_block = (*BLOCK_ORDER, component).index(component)
        return layer, position_in_block, component

    parts = []
    for layer, component in sorted(paths_by_part, key=position):
        parts.append(Part(component, layer, tuple(paths_by_part[layer, component])))
    return parts


def _paths_by_part(model: FrozenModel) -> dict[tuple[int, str], list[str]]:
    """Return the paths of the modules of each part, by (layer, component).

    Inside a block, they are its direct submodules that have weights. Outside of the blocks, they
    are all modules with weights of their own: one before the blocks has layer -1 and belongs to
    the component "embedding"; one after them has layer `model.n_layers` and belongs to the
    component "norms" or "unembedding".
    """
    blocks = model.family.blocks
    module_of_block = re.compile(rf"{re.escape(blocks)}\.(\d+)\.([^.]+)$")
    paths_by_part: dict[tuple[int, str], list[str]] = {}
    is_before_blocks = True
    for path, module in model.module.named_modules():
        if path.startswith(f"{blocks}."):
            is_before_blocks = False
            # Only direct submodules of a block match. Each stands for all modules inside of it.
            match = module_of_block.match(path)
            if match and _has_weights(module):
                layer = int(match[1])
                component = component_of(match[2])
                paths_by_part.setdefault((layer, component), []).append(path)
        elif path and _has_weights(module, recurse=False):
            # PEFT may have wrapped the module. The wrapper, which also holds modules of the
            # adapter, is then listed in the place of the module.
            outer_path = _outermost_wrapper(model.module, path)
            layer = model.n_layers
            component = "unembedding"
            if is_before_blocks:
                layer = -1
                component = "embedding"
            elif component_of(outer_path.rpartition(".")[2]) == "norms":
                component = "norms"
            paths = paths_by_part.setdefault((layer, component), [])
            if outer_path not in paths:
                paths.append(outer_path)
    return paths_by_part


def _has_weights(module: nn.Module, recurse: bool = True) -> bool:
    """Return whether a module has weights itself or, if `recurse`, in a module inside of it."""
    return next(module.parameters(recurse=recurse), None) is not None


def _weight_ids(module: nn.Module, paths: Iterable[str]) -> set[int]:
    """Return the Python `id` of each weight of the modules at these paths.

    A weight that two modules share has one `id`.
    """
    ids = set()
    for path in paths:
        ids |= {id(weight) for weight in module.get_submodule(path).parameters()}
    return ids


def is_wrapper(module: nn.Module) -> bool:
    """Return whether a module of PEFT has taken the place of another, which is inside of it."""
    is_of_peft = type(module).__module__.startswith("peft.")
    return is_of_peft and any(name in module._modules for name in NAMES_OF_WRAPPED)


def _outermost_wrapper(module: nn.Module, path: str) -> str:
    """Return the path of the outermost wrapper of PEFT around the module at a path.

    The path itself is returned if there is no wrapper around the module.
    """
    names = path.split(".")
    for depth in range(1, len(names) + 1):
        outer_path = ".".join(names[:depth])
        if is_wrapper(module.get_submodule(outer_path)):
            return outer_path
    return path


def comparable_name(module: nn.Module, name: str) -> str | None:
    """Return the name that a weight has in a model without PEFT's wrappers.

    It is None for a weight that is not in use: the original of a module that a copy in
    `modules_to_save` replaces, or a copy that is not active. The weight that an adapter changes
    has the name of the plain model, and those of the adapter are beside it:

        q_proj.base_layer.weight           q_proj.weight
        q_proj.lora_A.default.weight       q_proj.lora_A.default.weight
        lm_head.modules_to_save.default.weight      lm_head.weight
        lm_head.original_module.weight              None, while the line above is in use

    Args:
        module: The model.
        name: The name of the weight in it.
    """
    # The module follows the components of the name from the root inwards; those that only a
    # wrapper adds are left out.
    remaining = name.split(".")
    plain_components: list[str] = []
    while remaining:
        component = remaining.pop(0)
        has_copies = "modules_to_save" in module._modules
        if not is_wrapper(module):
            plain_components.append(component)
        elif component in ("original_module", "modules_to_save") and has_copies:
            wrapper = cast("ModulesToSaveWrapper", module)
            copies = wrapper.modules_to_save
            active = [] if wrapper.disable_adapters else wrapper.active_adapters
            copies_in_use = [adapter for adapter in active if adapter in copies]
            is_copy = component == "modules_to_save"
            if is_copy != bool(copies_in_use):
                return None
            if is_copy:
                # The next component is the name of the adapter whose copy it is.
                if remaining[0] not in copies_in_use:
                    return None
                module = copies
                component = remaining.pop(0)
        elif component not in NAMES_OF_WRAPPED:
            plain_components.append(component)
        if remaining:
            module = cast(nn.Module, getattr(module, component, None))
    return ".".join(plain_components)


def comparable_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and persistent buffers in use, by `comparable_name`."""
    return _by_comparable_name(module, tensors_of(module))


def _comparable_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters in use, by `comparable_name`."""
    return _by_comparable_name(module, module.named_parameters())


def _by_comparable_name(
    module: nn.Module, tensors: Iterable[tuple[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the given tensors by the names that they have in a model without PEFT's wrappers.

    Tensors that are not in use, such as the original of a module that an adapter replaces, are
    left out.

    Args:
        module: The model.
        tensors: Pairs of a tensor's name in the model, and the tensor.
    """
    by_plain_name = {}
    for name, tensor in tensors:
        plain_name = comparable_name(module, name)
        if plain_name is not None:
            by_plain_name[plain_name] = tensor
    return by_plain_name


def component_of(name: str) -> str:
    """Return which component of a block a module is: "norms", "attention" or "MLP".

    The module's name decides, by the first pattern in `COMPONENTS` that it contains. A name that
    contains none is returned as it is.
    """
    for component, pattern in COMPONENTS.items():
        if re.search(pattern, name.lower()):
            return component
    return name


def check_same_structure(base: FrozenModel, changed: FrozenModel) -> None:
    """Raise a ModelError unless two models have the same depth, width and parts.

    Otherwise neither can be a changed copy of the other. A part is the modules of one component,
    such as attention, in one layer; only their names are compared. If one model alone shares a
    weight between embedding and head, their parts differ, too: such weights must have been untied
    before (`give_same_ties_and_vocabulary`).
    """
    for name in ("n_layers", "d_model"):
        base_size = getattr(base, name)
        changed_size = getattr(changed, name)
        if base_size != changed_size:
            raise ModelError(
                f"{base.name} has {name}={base_size} and {changed.name} {changed_size}, so "
                f"neither is a changed copy of the other; {named_setting('measure', 'cka')} "
                "compares any two models"
            )
    if parts_of(base) != parts_of(changed):
        raise ModelError(
            f"{base.name} and {changed.name} have different modules; "
            f"{named_setting('measure', 'cka')} compares any two models"
        )


def give_same_ties_and_vocabulary(base: FrozenModel, changed: FrozenModel) -> list[str]:
    """Untie weights that only one of two models ties, and cut both to the smaller vocabulary.

    Both models are changed in place, so that their weights can be compared one by one. The logits
    of tokens that both models have stay as they are; rows of the larger vocabulary beyond the
    smaller one are removed. One sentence is returned for each change.
    """
    sentences = []
    # Pairs (path of a module, name of its weight) of weights that an earlier module has as well.
    base_tied = _tied_weights(base.module)
    changed_tied = _tied_weights(changed.module)
    for model, tied_in_this_model_alone in (
        (base, base_tied - changed_tied),
        (changed, changed_tied - base_tied),
    ):
        for path, name in tied_in_this_model_alone:
            module = model.module.get_submodule(path)
            own_copy = getattr(module, name).detach().clone()
            setattr(module, name, nn.Parameter(own_copy, requires_grad=False))
            sentences.append(
                f"Only {model.name} ties {path}.{name} to another weight; both models are "
                "compared untied."
            )
    rows = min(base.vocabulary, changed.vocabulary)
    for model in (base, changed):
        rows_before = model.vocabulary
        if rows_before > rows:
            _cut_vocabulary(model, rows)
            sentences.append(
                f"{model.name} has {rows_before:,} rows of tokens; the first {rows:,}, which "
                "both have, are compared."
            )
    return sentences


def _tied_weights(module: nn.Module) -> set[tuple[str, str]]:
    """Return (path of the module, name of the weight) for each weight that is tied to another.

    If several modules share a weight, all but the first of them are listed.
    """
    ids_of_earlier_weights = set[int]()
    tied = set[tuple[str, str]]()
    for path, submodule in module.named_modules():
        for name, weight in submodule.named_parameters(recurse=False):
            if id(weight) in ids_of_earlier_weights:
                tied.add((path, name))
            ids_of_earlier_weights.add(id(weight))
    return tied


def _cut_vocabulary(model: FrozenModel, rows: int) -> None:
    """Keep the first `rows` rows of the embedding, and of the head and its bias, in place.

    These weights are recognised by their number of rows: every weight outside the blocks that has
    as many rows as the vocabulary is one of them. The attributes of their modules and of the model
    that state the number of rows change as well.
    """
    for path, module in model.module.named_modules():
        if path.startswith(f"{model.family.blocks}."):
            continue
        for weight in module.parameters(recurse=False):
            if len(weight) == model.vocabulary:
                weight.data = weight.data[:rows].clone()
        for attribute in ("num_embeddings", "out_features"):  # of nn.Embedding and nn.Linear
            if getattr(module, attribute, None) == model.vocabulary:
                setattr(module, attribute, rows)
    model.vocabulary = rows


def changed_parts(base: FrozenModel, changed: FrozenModel) -> list[Part]:
    """Return the parts of the base, such as one block's MLP, that differ in the changed model.

    A part differs if one of its weights or persistent buffers does, or is in only one of the
    models. Parts come in the order in which a pass runs them.

    Raises:
        ModelError: A tensor differs that belongs to no part.
    """
    # By the names that they have without PEFT's wrappers.
    base_tensors = comparable_tensors(base.module)
    changed_tensors = comparable_tensors(changed.module)
    differing_names = base_tensors.keys() ^ changed_tensors.keys()  # those in only one model
    for name in base_tensors.keys() & changed_tensors.keys():
        if not _have_equal_values(base_tensors[name], changed_tensors[name]):
            differing_names.add(name)

    differing_parts = []
    names_in_parts = set[str]()
    for part in parts_of(base):
        names_in_part = {name for name in differing_names if name.startswith(part.prefixes)}
        names_in_parts |= names_in_part
        if names_in_part:
            differing_parts.append(part)
    names_in_no_part = sorted(differing_names - names_in_parts)
    if names_in_no_part:
        raise ModelError(
            f"{changed.name}: {names_in_no_part[0]} differs or is not in both, and belongs to no "
            "module of weights"
        )
    return differing_parts


def _have_equal_values(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and the same numbers.

    They are compared in a dtype that holds the numbers of both, so that nothing is rounded. A
    tensor with a NaN equals no other.
    """
    if tensor.shape != other.shape:
        return False
    dtype = torch.promote_types(tensor.dtype, other.dtype)
    return torch.equal(tensor.to(dtype), other.to(tensor.device, dtype))


def weight_that_cannot_be_subtracted(base: FrozenModel, changed: FrozenModel) -> str:
    """Return the name of a weight for which changed - base cannot be computed, or "".

    It is the first weight that is in only one of the models (as those of an adapter are), has
    different shapes in them, is packed as whole numbers, or whose dtype in the base cannot hold
    all numbers of the changed weight's dtype. "" means that all weights can be subtracted.
    """
    base_weights = _comparable_weights(base.module)
    changed_weights = _comparable_weights(changed.module)
    only_in_one = sorted(base_weights.keys() ^ changed_weights.keys())
    if only_in_one:
        return only_in_one[0]
    for name, weight in base_weights.items():
        changed_weight = changed_weights[name]
        are_numbers = weight.is_floating_point() and changed_weight.is_floating_point()
        if weight.shape != changed_weight.shape or not are_numbers:
            return name
        # The base's dtype must hold every number of the changed weight.
        if torch.promote_types(weight.dtype, changed_weight.dtype) != weight.dtype:
            return name
    return ""


@contextlib.contextmanager
def exchanged(model: FrozenModel, other: FrozenModel, part: Part) -> Iterator[None]:
    """Put a part of another model in the place of this model's own while the context is open.

    A part is the modules of one component, such as the attention of one block. If the models'
    dtypes or devices differ, states are cast to those of `other` where they enter the part, and
    back where they leave it. (Casting the weights instead would change their values.)

    Args:
        model: The model that is changed.
        other: A model of the same architecture, whose part is used.
        part: Which part is exchanged.
    """
    original = {path: model.module.get_submodule(path) for path in part.paths}
    hooks: list[RemovableHandle] = []
    try:
        for path in part.paths:
            module = other.module.get_submodule(path)
            _set_submodule(model.module, path, module)
            if (model.dtype, model.device) != (other.dtype, other.device):
                hooks += _casting_hooks(module, outside=model, inside=other)
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for path, module in original.items():
            _set_submodule(model.module, path, module)


def _casting_hooks(
    module: nn.Module, outside: FrozenModel, inside: FrozenModel
) -> list[RemovableHandle]:
    """Register hooks that let a module of the model `inside` run in the model `outside`.

    All tensors among the module's arguments are cast to the dtype and device of `inside`, and
    those of its output to the dtype and device of `outside`.

    Returns:
        The handles by which the two hooks are removed.
    """

    def cast_arguments(
        _: nn.Module, arguments: tuple[object, ...], named: dict[str, object]
    ) -> tuple[object, dict[str, object]]:
        cast_named = {name: _cast_to_model(inside, value) for name, value in named.items()}
        return _cast_to_model(inside, arguments), cast_named

    def cast_output(_: nn.Module, arguments: tuple[object, ...], output: object) -> object:
        return _cast_to_model(outside, output)

    # Other hooks of the module see the tensors that it computes with: the first hook casts its
    # arguments, and the last one its output.
    entering = module.register_forward_pre_hook(cast_arguments, with_kwargs=True, prepend=True)
    leaving = module.register_forward_hook(cast_output)
    return [entering, leaving]


def _cast_to_model(model: FrozenModel, value: object) -> object:
    """Return a tensor on a model's device, in the model's dtype if it holds floats.

    The members of a list, tuple or dictionary are cast in the same way, in a new container.
    Anything else, including objects of subclasses of these three types, is returned as it is.
    """
    if isinstance(value, Tensor):
        if value.is_floating_point():
            return value.to(model.device, model.dtype)
        return value.to(model.device)
    if type(value) is list:
        return [_cast_to_model(model, member) for member in value]
    if type(value) is tuple:
        return tuple(_cast_to_model(model, member) for member in value)
    if type(value) is dict:
        return {name: _cast_to_model(model, member) for name, member in value.items()}
    return value


def _set_submodule(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module in the place of the one at a path."""
    parent_path, _, name = path.rpartition(".")  # the parent of a path without dots is the root
    root.get_submodule(parent_path)._modules[name] = module


@contextlib.contextmanager
def weights_changed(
    base: FrozenModel,
    changed: FrozenModel,
    parts: Sequence[Part],
    addition_for: Callable[[str, Tensor], Tensor],
) -> Iterator[None]:
    """Add a tensor to each weight of `base` that differs in `changed`, while the context is open.

    Only weights in `parts` are changed. A weight whose shape differs in `changed` stays as it is.

    Args:
        base: The model whose weights are changed.
        changed: A model that has a weight of every name that `base` has.
        parts: The components, such as the attention of one block, whose weights are changed.
        addition_for: Given the name of a weight and the difference changed - base, returns the
            tensor that is added. It may change the difference in place.
    """
    changed_weights = dict(changed.module.named_parameters())
    prefixes = tuple(prefix for part in parts for prefix in part.prefixes)
    weights_with_original_values = []
    try:
        for name, weight in base.module.named_parameters():
            if not name.startswith(prefixes):
                continue
            changed_weight = changed_weights[name].to(weight)  # the dtype and device of `weight`
            is_same_shape = changed_weight.shape == weight.shape
            if is_same_shape and not torch.equal(weight, changed_weight):
                weights_with_original_values.append((weight, weight.data))
                difference = changed_weight - weight.data
                addition = addition_for(name, difference)
                # The sum is written into `addition`, to take no further memory.
                weight.data = addition.add_(weight.data)
        yield
    finally:
        for weight, original_values in weights_with_original_values:
            weight.data = original_values


def common_weights(
    base: FrozenModel, changed: FrozenModel, paths: Sequence[str]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (base's weight, changed weight) for each weight of both models with one shape.

    Both tensors are in the wider of their two dtypes, and on the device of the base's weight.
    Weights that the changed model packs as whole numbers are left out.

    Args:
        base, changed: The models.
        paths: The paths of the modules whose weights are compared; "" is the whole model.
    """
    for path in paths:
        changed_weights = _comparable_weights(changed.module.get_submodule(path))
        base_weights = _comparable_weights(base.module.get_submodule(path))
        for name, weight in base_weights.items():
            changed_weight = changed_weights.get(name)
            if changed_weight is None or changed_weight.shape != weight.shape:
                continue
            if changed_weight.is_floating_point():
                dtype = torch.promote_types(weight.dtype, changed_weight.dtype)
                yield weight.to(dtype), changed_weight.to(weight.device, dtype)


def norms_of_change_and_base(
    base: FrozenModel, changed: FrozenModel, paths: Sequence[str] = ("",)
) -> tuple[float, float]:
    """Return the Euclidean norms ‖changed - base‖ and ‖base‖ of all weights taken together.

    Only weights that both models have in the same shape count. Squares are summed in float64. Both
    norms are 0 if the models have no weight in common.

    Args:
        base, changed: The two models.
        paths: The paths of the modules whose weights count; "" is the whole model.
    """
    sum_of_squared_changes = 0.0
    sum_of_squares = 0.0
    for weight, changed_weight in common_weights(base, changed, paths):
        change = changed_weight - weight
        sum_of_squared_changes += float(change.double().square().sum())
        sum_of_squares += float(weight.double().square().sum())
    return sum_of_squared_changes**0.5, sum_of_squares**0.5
