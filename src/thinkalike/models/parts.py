"""The parts of a model, such as one block's attention, two changes to them that undo themselves, and altered copies.

A part is one or several modules, so that it can be exchanged for that of another model of the same architecture,
whatever its weights are stored in: the module of the other model takes its place.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinkalike.errors import ModelError
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.survey import tensors_of

COMPONENTS = {  # by a word in the name of a module of a block
    "norms": r"norm|^ln",
    "attention": r"att",
    "MLP": r"mlp|ffn|feed_forward|moe|expert",
}


# the names by which a module of PEFT has the module whose place it took
WRAPPED = ("base_layer", "original_module", "token_adapter", "model")


@dataclass(frozen=True)
class Part:
    """The modules of a model that are one component of one layer."""

    component: str  # embedding, attention, MLP, norms, unembedding, or the name of another module of a block
    layer: int  # the block; -1 for what is before the blocks, and their number for what is after them
    paths: tuple[str, ...]  # of the modules

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The names of its weights begin with one of these."""
        return tuple(f"{path}." for path in self.paths)

    def __str__(self) -> str:
        return self.component if self.component.endswith("embedding") else f"{self.component} {self.layer}"


def parts_of(model: FrozenModel) -> list[Part]:
    """Return the parts of a model in the order in which states pass them, each module with weights in one part.

    An unembedding that is tied to the embedding is of the same part as the embedding.
    """
    found: dict[tuple[int, str], list[str]] = {}
    blocks, before, order = model.family.blocks, True, ["norms", "attention", "MLP"]
    for path, module in model.module.named_modules():
        own = re.match(rf"{re.escape(blocks)}\.(\d+)\.([^.]+)$", path)
        inside = path.startswith(f"{blocks}.")
        before = before and not inside
        if own and next(module.parameters(), None) is not None:
            found.setdefault((int(own[1]), component_of(own[2])), []).append(path)
        elif not inside and path and next(module.parameters(recurse=False), None) is not None:
            path = _outermost_wrapper(model.module, path)
            layer = -1 if before else model.n_layers
            is_norm = component_of(path.rpartition(".")[2]) == "norms"
            component = "embedding" if before else "norms" if is_norm else "unembedding"
            paths = found.setdefault((layer, component), [])
            paths += [path] if path not in paths else []
    embedding, last = (-1, "embedding"), (model.n_layers, "unembedding")
    both = [{id(weight) for path in found.get(key, ()) for weight in model.module.get_submodule(path).parameters()}
            for key in (embedding, last)]  # fmt: skip
    if both[0] & both[1]:
        found[embedding] += found.pop(last)
    places = sorted(found, key=lambda each: (each[0], (*order, each[1]).index(each[1]), each[1]))
    return [Part(component, layer, tuple(found[layer, component])) for layer, component in places]


def is_wrapper(module: nn.Module) -> bool:
    """Return whether a module is one of PEFT that has taken the place of another, which is inside of it."""
    is_of_peft = type(module).__module__.startswith("peft.")
    return is_of_peft and any(name in module._modules for name in WRAPPED)


def _outermost_wrapper(module: nn.Module, path: str) -> str:
    """Return the path of the outermost module of PEFT around a path, or the path itself."""
    names = path.split(".")
    around = (".".join(names[:count]) for count in range(1, len(names) + 1))
    return next((each for each in around if is_wrapper(module.get_submodule(each))), path)


def comparable_name(module: Any, name: str) -> str | None:
    """Return the name that a weight has in a model without PEFT's wrappers; None for a weight that is not in use.

    The weight that an adapter changes has its own name, and those of the adapter are beside it:

        q_proj.base_layer.weight           q_proj.weight
        q_proj.lora_A.default.weight       q_proj.lora_A.default.weight
        lm_head.modules_to_save.default.weight      lm_head.weight
        lm_head.original_module.weight              None, while the line above is in use
    """
    names = name.split(".")
    plain: list[str] = []
    while names:
        following = names.pop(0)
        if not is_wrapper(module):
            plain.append(following)
        elif following in ("original_module", "modules_to_save") and "modules_to_save" in module._modules:
            active = [] if module.disable_adapters else module.active_adapters
            copies = [name for name in active if name in module.modules_to_save]
            is_copy = following == "modules_to_save"
            if is_copy != bool(copies) or (is_copy and names[0] not in copies):
                return None
            if is_copy:
                module = module.modules_to_save
                following = names.pop(0)
        elif following not in WRAPPED:
            plain.append(following)
        module = getattr(module, following, None) if names else module
    return ".".join(plain)


def comparable_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and persistent buffers in use by `comparable_name`."""
    named = ((comparable_name(module, name), tensor) for name, tensor in tensors_of(module))
    return {name: tensor for name, tensor in named if name is not None}


def _comparable_weights(module: nn.Module) -> dict[str, Tensor]:
    named = ((comparable_name(module, name), weight) for name, weight in module.named_parameters())
    return {name: weight for name, weight in named if name is not None}


def component_of(name: str) -> str:
    """Return the component that a module of a block is by its name, or the name if none is known."""
    return next((component for component, word in COMPONENTS.items() if re.search(word, name.lower())), name)


def check_one_basis(base: FrozenModel, changed: FrozenModel) -> None:
    """Raise a ModelError unless two models in one form have modules and widths alike, as a changed copy has."""
    for name in ("n_layers", "d_model"):
        if (first := getattr(base, name)) != (second := getattr(changed, name)):
            found = f"{base.name} has {name}={first} and {changed.name} {second}"
            raise ModelError(f"{found}, so neither is a changed copy of the other; measure=cka compares any two models")
    if parts_of(base) != parts_of(changed):
        raise ModelError(f"{base.name} and {changed.name} have different modules; measure=cka compares any two models")


def one_form(base: FrozenModel, changed: FrozenModel) -> list[str]:
    """Bring two models to one form, in place, and return what was done in sentences; predictions stay as they are.

    Weights that only one model ties are untied in it. Of vocabularies with different numbers of rows, the first rows,
    which both have, stay; tokens beyond them have no logits then.
    """
    done, first, second = list[str](), _tied(base.module), _tied(changed.module)
    for model, alone in ((base, first - second), (changed, second - first)):
        for path, name in alone:
            module = model.module.get_submodule(path)
            setattr(module, name, nn.Parameter(getattr(module, name).detach().clone(), requires_grad=False))
            done.append(f"Only {model.name} ties {path}.{name} to another weight; both models are compared untied.")
    rows = min(base.vocabulary, changed.vocabulary)
    for model in (base, changed):
        if (more := model.vocabulary) > rows:
            _keep_rows(model, rows)
            done.append(f"{model.name} has {more:,} rows of tokens; the first {rows:,}, which both have, are compared.")
    return done


def _tied(module: nn.Module) -> set[tuple[str, str]]:
    """Return the path and name of each weight that another module, earlier in order, has as well."""
    seen, found = set[int](), set[tuple[str, str]]()
    for path, part in module.named_modules():
        for name, weight in part.named_parameters(recurse=False):
            if id(weight) in seen:
                found.add((path, name))
            seen.add(id(weight))
    return found


def _keep_rows(model: FrozenModel, rows: int) -> None:
    """Leave the first rows of each weight outside the blocks that has a row for each token."""
    for path, part in model.module.named_modules():
        if path.startswith(f"{model.family.blocks}."):
            continue
        for weight in part.parameters(recurse=False):
            if len(weight) == model.vocabulary:
                weight.data = weight.data[:rows].clone()
        for size in ("num_embeddings", "out_features"):
            if getattr(part, size, None) == model.vocabulary:
                setattr(part, size, rows)
    model.vocabulary = rows


def changed_parts(base: FrozenModel, changed: FrozenModel) -> list[Part]:
    """Return the parts of which some weight or persistent buffer differs."""
    first, second = (comparable_tensors(model.module) for model in (base, changed))
    same = {name for name in first.keys() & second.keys() if torch.equal(first[name], second[name].to(first[name]))}
    differ = (first.keys() | second.keys()) - same
    inside = {part: {name for name in differ if name.startswith(part.prefixes)} for part in parts_of(base)}
    if lost := sorted(differ.difference(*inside.values())):
        raise ModelError(f"{changed.name}: {lost[0]} differs or is not in both, and belongs to no module of weights")
    return [part for part, names in inside.items() if names]


def without_difference(base: FrozenModel, changed: FrozenModel) -> str:
    """Return the name of a weight that has no difference, or "" if all have one.

    It is packed, of two shapes, or in one model alone, as those of an adapter are.
    """
    ours = _comparable_weights(base.module)
    theirs = _comparable_weights(changed.module)
    if alone := sorted(ours.keys() ^ theirs.keys()):
        return alone[0]
    for name, weight in ours.items():
        are_numbers = weight.is_floating_point() and theirs[name].is_floating_point()
        if weight.shape != theirs[name].shape or not are_numbers:
            return name
    return ""


@contextlib.contextmanager
def exchanged(model: FrozenModel, other: FrozenModel, part: Part) -> Iterator[None]:
    """Let the part of another model of the same architecture take the place of the model's own while this is open."""
    own = [(model.module.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in part.paths]
    before = [host._modules[name] for host, name in own]
    try:
        for (host, name), path in zip(own, part.paths, strict=True):
            host._modules[name] = other.module.get_submodule(path)
        yield
    finally:
        for (host, name), module in zip(own, before, strict=True):
            host._modules[name] = module


@contextlib.contextmanager
def moved(
    base: FrozenModel, changed: FrozenModel, parts: Sequence[Part], move: Callable[[str, Tensor], Tensor]
) -> Iterator[None]:
    """Add `move(name, changed - base)`, new memory, to each weight of parts that differs, while this is open."""
    theirs, before = dict(changed.module.named_parameters()), []
    inside = tuple(prefix for part in parts for prefix in part.prefixes)
    try:
        for name, weight in (each for each in base.module.named_parameters() if each[0].startswith(inside)):
            other = theirs[name].to(weight)
            if other.shape == weight.shape and not torch.equal(weight, other):
                before.append((weight, weight.data))
                weight.data = move(name, other - weight.data).add_(weight.data)
        yield
    finally:
        for weight, data in before:
            weight.data = data


def common_weights(base: FrozenModel, changed: FrozenModel, paths: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the weights of some modules that both models have as numbers of one shape."""
    for path in paths:
        theirs = _comparable_weights(changed.module.get_submodule(path))
        for name, weight in _comparable_weights(base.module.get_submodule(path)).items():
            other = theirs.get(name)
            if other is not None and other.shape == weight.shape and other.is_floating_point():
                yield weight, other.to(weight)


def norms(base: FrozenModel, changed: FrozenModel, paths: Sequence[str] = ("",)) -> tuple[float, float]:
    """Return ‖changed - base‖ and ‖base‖ over the `common_weights`."""
    pairs = list(common_weights(base, changed, paths))
    sides = [(other - weight for weight, other in pairs), (weight for weight, _ in pairs)]
    change, whole = (sum(float(each.double().square().sum()) for each in side) ** 0.5 for side in sides)
    return change, whole
