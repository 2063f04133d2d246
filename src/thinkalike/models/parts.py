"""The parts of a model, such as one block's attention, and two changes to them that undo themselves.

A part is one or several modules, so that it can be exchanged for that of another model of the same architecture,
whatever its weights are stored in: the module of the other model takes its place.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinkalike.errors import ModelError
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.survey import tensors_of

COMPONENTS = {  # by a word in the name of a module of a block
    "norms": r"norm|^ln",
    "attention": r"att",
    "MLP": r"mlp|ffn|feed_forward|moe|expert",
}


@dataclass(frozen=True)
class Part:
    """The modules of a model that are one component of one layer."""

    component: str  # embedding, attention, MLP, norms, unembedding, or the name of another module of a block
    layer: int  # the block; -1 for what is before the blocks, and their number for what is after them
    paths: tuple[str, ...]  # of the modules

    def __str__(self) -> str:
        return self.component if self.component.endswith("embedding") else f"{self.component} {self.layer}"


def parts_of(model: FrozenModel) -> list[Part]:
    """Return the parts of a model in the order in which states pass them, each module with weights in one part."""
    found: dict[tuple[int, str], list[str]] = {}
    blocks, before = model.family.blocks, True
    for path, module in model.module.named_modules():
        own = re.match(rf"{re.escape(blocks)}\.(\d+)\.([^.]+)$", path)
        inside = path.startswith(f"{blocks}.")
        before = before and not inside
        if own and next(module.parameters(), None) is not None:
            found.setdefault((int(own[1]), component_of(own[2])), []).append(path)
        elif not inside and path and next(module.parameters(recurse=False), None) is not None:
            layer = -1 if before else model.n_layers
            is_norm = component_of(path.rpartition(".")[2]) == "norms"
            component = "embedding" if before else "norms" if is_norm else "unembedding"
            found.setdefault((layer, component), []).append(path)
    return [Part(component, layer, tuple(paths)) for (layer, component), paths in sorted(found.items(), key=_place)]


def _place(item: tuple[tuple[int, str], list[str]]) -> tuple[int, int, str]:
    layer, component = item[0]
    order = ["norms", "attention", "MLP"]
    return layer, order.index(component) if component in order else len(order), component


def component_of(name: str) -> str:
    """Return the component that a module of a block is by its name, or the name if none is known."""
    return next((component for component, word in COMPONENTS.items() if re.search(word, name.lower())), name)


def check_one_basis(base: FrozenModel, changed: FrozenModel) -> None:
    """Raise a ModelError unless two models have modules and widths alike, as a model and its changed copy have."""
    for name in ("n_layers", "d_model", "vocabulary"):
        if (first := getattr(base, name)) != (second := getattr(changed, name)):
            raise ModelError(
                f"{base.name} has {name}={first} and {changed.name} {second}, so that neither is a changed copy of the "
                "other; measure=cka compares any two models"
            )
    if parts_of(base) != parts_of(changed):
        raise ModelError(f"{base.name} and {changed.name} have different modules; measure=cka compares any two models")


def changed_parts(base: FrozenModel, changed: FrozenModel) -> list[Part]:
    """Return the parts of which some weight or persistent buffer differs."""
    first, second = (dict(tensors_of(model.module)) for model in (base, changed))
    same = {name for name in first.keys() & second.keys() if torch.equal(first[name], second[name].to(first[name]))}
    differ = (first.keys() | second.keys()) - same
    inside = {
        part: {name for name in differ if name.startswith(tuple(f"{path}." for path in part.paths))}
        for part in parts_of(base)
    }
    if lost := sorted(differ.difference(*inside.values())):
        raise ModelError(f"{changed.name}: {lost[0]} differs, and belongs to none of the model's modules of weights")
    return [part for part, names in inside.items() if names]


def is_packed(model: FrozenModel) -> bool:
    """Return whether some weight is not stored as the numbers that it stands for, as quantised ones are."""
    return any(not weight.is_floating_point() for weight in model.module.parameters())


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
def moved(base: FrozenModel, changed: FrozenModel, move: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Add `move(name, changed - base)` to each weight of the base that differs, while this is open; none is packed."""
    theirs, before = dict(changed.module.named_parameters()), []
    try:
        for name, weight in base.module.named_parameters():
            other = theirs[name].to(weight)
            if not torch.equal(weight, other):
                before.append((weight, weight.data))
                weight.data = weight.data + move(name, other - weight.data)
        yield
    finally:
        for weight, data in before:
            weight.data = data


def common_weights(base: FrozenModel, changed: FrozenModel, paths: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the weights of some modules that both models have as numbers of one shape."""
    for path in paths:
        theirs = dict(changed.module.get_submodule(path).named_parameters())
        for name, weight in base.module.get_submodule(path).named_parameters():
            other = theirs.get(name)
            if other is not None and other.shape == weight.shape and other.is_floating_point():
                yield weight, other.to(weight)


def norms(base: FrozenModel, changed: FrozenModel, paths: Sequence[str] = ("",)) -> tuple[float, float]:
    """Return ‖changed - base‖ and ‖base‖ over the `common_weights`."""
    pairs = list(common_weights(base, changed, paths))
    sides = [(other - weight for weight, other in pairs), (weight for weight, _ in pairs)]
    change, whole = (sum(float(each.double().square().sum()) for each in side) ** 0.5 for side in sides)
    return change, whole
