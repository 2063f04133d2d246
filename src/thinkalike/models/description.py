"""Objects as text that is the same in every process.

It holds no address, path of a file or line number.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterator
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig

from thinkalike.code_text import (
    added_functions,
    code_text,
    content_of,
    globals_read,
    is_installed,
    is_installed_function,
    is_of_library,
    is_own_class,
    names_in_library,
)
from thinkalike.errors import flat
from thinkalike.models.module_facts import UNREAD, config_of_text_model, known_entries
from thinkalike.models.proof import may_change_states

# The types of objects whose `repr` is their text.
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    range,
    slice,
    type(None),
    type(Ellipsis),
)

# The attributes of a module that hold the hooks of its forward pass.
HOOKS = ("_forward_hooks", "_forward_pre_hooks")

# Attributes of every nn.Module, which are weights, modules, or what only training and saving read.
OF_EVERY_MODULE = {*vars(nn.Module()), "_is_full_backward_hook"}

# Attributes of models of transformers that say where a model is from, and where its weights are,
# and not what it does. Of an adapter, its layers have what they read of the last two.
OF_ORIGIN = {
    "name_or_path",
    "warnings_issued",
    "generation_config",
    "hf_device_map",
    "_hf_hook",
    "_is_hf_initialized",
    "peft_config",
    "_hf_peft_config_loaded",
}

# Attributes that a first pass with output_hidden_states=True and torch.compile leave behind.
OF_USE = {
    "_output_capturing_hooks_installed",
    "_is_torch_compile",
    "_compiled_call_impl",
    "_compile_kwargs",
}

# How many objects inside one another are told apart.
DEEPEST = 8

# The longest text that is not replaced by its digest.
LONGEST = 120

# Stands for an object that a pass changes.
CHANGING = "(changes)"

# Ends the text of a tensor of which only the shape is known.
NO_VALUES = "(no values)"

# The path of a module, or the name of a library, and the name of what it has; "" is its class.
Trait = tuple[str, str]

# The way to an object: the owner and name of a trait, then the number of the object within each
# object that holds it.
Steps = tuple[str | int, ...]


class Description:
    """Describes objects as text, with the modules and weights of one root module by their paths.

    Args:
        root: The module whose traits are described.
        changing: The steps of objects that are described as changing, whatever they hold.
    """

    def __init__(self, root: nn.Module, changing: Collection[Steps] = ()):
        self.changing = changing

        # Whose traits are being described: the path of a module, or "libraries".
        self.owner = ""
        # The steps to the object that is being described.
        self.steps: Steps = ()
        # The objects that are being described, since they may contain themselves.
        self.described: list[int] = []

        # The text of each object, and how many objects it holds.
        self.texts: dict[Steps, str] = {}
        self.held_counts: dict[Steps, int] = {}
        self.classes: dict[type, str] = {}

        # Whether texts tell all that decides what the objects do. Code that is of no installed
        # package can read anything: the attributes of a class, a file, the environment.
        self.is_complete = True

        self.paths = {id(module): path for path, module in root.named_modules()}
        self.weights: dict[int, str] = {}
        for name, weight in root.named_parameters(remove_duplicate=False):
            self.weights[id(weight)] = name
        configs = _configs_in(config_of_text_model(root), getattr(root, "config", None))
        self.configs = {id(config) for config in configs}

    def __call__(self, value: object, name: str = "") -> str:
        """Return a value as text, and remember the text by the steps to the value.

        Args:
            value: The value.
            name: The name of the trait whose value it is; of a value inside of another one the
                name does not count.
        """
        steps_outside = self.steps
        number = self.held_counts.get(steps_outside, 0)
        self.held_counts[steps_outside] = number + 1
        self.steps = (*steps_outside, number) if steps_outside else (self.owner, name)
        try:
            text = CHANGING if self.steps in self.changing else self._text(value)
            self.texts[self.steps] = text
            return text
        finally:
            self.steps = steps_outside

    def changed_by(self, later: Description) -> set[Steps]:
        """Return the steps of the innermost objects that a later description has another text for.

        An object that holds more or fewer objects than before has changed as a whole. An object
        that the later description lacks has not changed.
        """
        changed: set[Steps] = set()
        for steps, text in self.texts.items():
            if later.texts.get(steps, text) != text:
                changed.add(steps)
        resized: set[Steps] = set()
        for steps in changed:
            if self.held_counts.get(steps, 0) != later.held_counts.get(steps, 0):
                resized.add(steps)
        holders = {steps[:-1] for steps in changed}
        innermost = changed - holders
        return resized | innermost

    def _text(self, value: object) -> str:
        """Return a value as text, shortened to a digest where it is long.

        An object that is being described already, or that is too deep inside of others, is only
        the name of its class.
        """
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, PLAIN):
            return _shortened(repr(value))
        if id(value) in self.described or len(self.described) >= DEEPEST:
            return type(value).__name__
        self.described.append(id(value))
        try:
            return _shortened(self._text_of_contents(value))
        finally:
            self.described.pop()

    def _text_of_contents(self, value: object) -> str:
        """Return an object as text of what it holds.

        The members of dictionaries and sets are sorted as text, since their order decides nothing.
        """
        if isinstance(value, Tensor | np.ndarray):
            return self._array_text(value)
        if isinstance(value, nn.Module):
            if id(value) in self.paths:
                return f"module {self.paths[id(value)]}"
            return self._module_outside(value)
        if isinstance(value, dict | OrderedDict | MappingProxyType):
            entries = [f"{self(key)}: {self(entry)}" for key, entry in value.items()]
            return f"{{{', '.join(sorted(entries))}}}"
        if isinstance(value, list | tuple):
            return f"[{', '.join([self(entry) for entry in value])}]"
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(self(entry) for entry in value))}}}"
        if isinstance(value, type):
            return self.class_text(value)
        if isinstance(value, ModuleType):
            return value.__name__
        text_of_callable = self._callable_text(value)
        if text_of_callable:
            return text_of_callable
        if isinstance(value, PreTrainedConfig):
            return self._config_text(value)

        text_of_class = self.class_text(type(value))
        if not hasattr(value, "__dict__"):
            return f"{text_of_class}{self._state_text(value)}"
        attributes = {}
        for name, entry in {**vars(value), **_values_of_slots(value)}.items():
            if not UNREAD.search(name):
                attributes[name] = entry
        text_of_attributes = self(attributes) if attributes else ""
        return f"{text_of_class}{text_of_attributes}"

    def _state_text(self, value: object) -> str:
        """Return what a copy of an object without a dictionary would be made of, as text.

        It is "" if that is nothing, or if the object cannot be copied.
        """
        try:
            ingredients = _ingredients_of_copy(value)
        except Exception:  # of a class that says that its objects cannot be copied, in its own way
            self.is_complete = False
            return ""
        return self(ingredients) if ingredients else ""

    def _array_text(self, value: Tensor | np.ndarray) -> str:
        """Return the name of a weight of the root, or the dtype, shape and digest of an array."""
        if id(value) in self.weights:
            return f"weight {self.weights[id(value)]}"
        shape = tuple(value.shape)
        if isinstance(value, Tensor) and value.is_meta:
            return f"{value.dtype} {shape} {NO_VALUES}"
        digest = hashlib.sha256(bytes_of(value)).hexdigest()[:8]
        return f"{value.dtype} {shape} ({digest})"

    def _module_outside(self, module: nn.Module) -> str:
        """Return a module that is no submodule of the root, such as one in a list.

        Its weights are part of the text.
        """
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        submodules = {}
        for path, submodule in module.named_modules():
            submodules[path] = [self.class_text(type(submodule)), *self.attributes(submodule)]
        text_of_tensors = self(tensors)
        text_of_submodules = self(submodules)
        return f"{text_of_tensors} {text_of_submodules}"

    def _config_text(self, config: PreTrainedConfig) -> str:
        """Return the class of a configuration with its entries.

        Those of the root's own configuration are left out: they are described with the settings.
        """
        settings = {}
        if id(config) not in self.configs:
            settings = known_entries(config)
        entries = sorted(repr(entry) for entry in flat(settings).items()) if settings else ""
        return f"{type(config).__name__}{entries}"

    def _callable_text(self, value: object) -> str:
        """Return a function or the like as text; "" for anything else."""
        if isinstance(value, FunctionType):
            return self.function_text(value)
        if isinstance(value, MethodType):
            return f"{self(value.__func__)} of {self(value.__self__)}"
        if isinstance(value, functools.partial):
            return f"partial({self(value.func)}, {self(value.args)}, {self(value.keywords)})"
        if isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        return ""

    def attributes(self, module: nn.Module) -> Iterator[tuple[str, str]]:
        """Yield the attributes of a module, its hooks, and its buffers that no checkpoint holds.

        Each is a name and a text. Attributes that every module has, that say where a model is
        from, or that no pass of an evaluated model reads are left out. So are all of a dropout.
        """
        is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
        unread = OF_EVERY_MODULE | OF_ORIGIN | OF_USE
        for name, value in vars(module).items():
            if name in HOOKS and value:
                hooks = [hook for hook in value.values() if may_change_states(hook)]
                if hooks:
                    yield name, self(hooks, name)
            elif name == "training" and value:
                yield name, "True"
            elif name in unread or UNREAD.search(name.lstrip("_")) or is_dropout:
                continue
            elif _are_handles(value):
                continue  # the hooks themselves are described where they run
            elif id(value) not in self.configs:
                yield name, self(value, name)
        for name in module._non_persistent_buffers_set:
            yield name, self(module._buffers.get(name), name)

    def class_text(self, described_class: type) -> str:
        """Return the name of a class, and a digest of the functions that were added to it.

        These are the functions in it that its library did not define.
        """
        if described_class in self.classes:
            return self.classes[described_class]
        name = f"{described_class.__module__}.{described_class.__qualname__}"
        self.classes[described_class] = name  # the class may contain itself
        # A class has steps of its own, as it is described but once, wherever it comes first.
        steps_outside = self.steps
        self.steps = ("class", name)
        if is_own_class(described_class):
            self.is_complete = False
        functions = []
        for owner, function in added_functions(described_class):
            functions.append(f"{owner.__qualname__}.{self(function)}")
        self.steps = steps_outside
        if functions:
            digest = _text_digest(" ".join(sorted(functions)))
            self.classes[described_class] = f"{name} ({digest})"
        return self.classes[described_class]

    def function_text(self, function: FunctionType) -> str:
        """Return the name of a function, and a digest of all that decides what it does.

        That is its code, defaults, closure and globals. A function of an installed library has no
        digest, unless it was defined inside another function, whose variables it may read.
        """
        name = f"{function.__module__}.{function.__qualname__}"
        is_defined_inside = "<locals>" in name or "<lambda>" in name
        if is_installed_function(function):
            if not is_defined_inside:
                return name
        else:
            self.is_complete = False
        closure = [content_of(cell) for cell in function.__closure__ or ()]
        defaults = [function.__defaults__, function.__kwdefaults__]
        own_globals = {}
        names = globals_read(function.__code__) & function.__globals__.keys()
        for name_of_global in sorted(names):
            value = function.__globals__[name_of_global]
            if not is_of_library(value):
                own_globals[name_of_global] = value
        texts = [code_text(function.__code__), self(defaults), self(closure), self(own_globals)]
        return f"{name} ({_text_digest(' '.join(texts))})"

    def patches(self) -> dict[Trait, str]:
        """Return the functions that replace some of the libraries that define the modules.

        A function under a name that the code of its library never uses replaces nothing:
        `torch.compile` leaves what it compiled among the globals of a library, under names of its
        own.
        """
        libraries = set()
        # A list, since describing a function may add classes.
        for described_class in list(self.classes):
            libraries |= {owner.__module__ for owner in described_class.__mro__}
        libraries = set(filter(is_installed, libraries))
        libraries |= _libraries_read(libraries)
        patches: dict[Trait, str] = {}
        for library in sorted(libraries):
            names = names_in_library(library)
            for name, value in vars(sys.modules[library]).items():
                # isinstance asks deprecated values of torch for their class, which warn.
                if type(value) is not FunctionType or name not in names:
                    continue
                if not is_installed_function(value):
                    patches[library, name] = self(value, f"{library} {name}")
        for _, function in added_functions(Tensor):
            name = function.__qualname__
            patches["torch.Tensor", name] = self(function, f"torch.Tensor {name}")
        return patches


def _libraries_read(libraries: Collection[str]) -> set[str]:
    """Return the libraries that libraries have among their globals: F is torch.nn.functional."""
    read = set()
    for library in libraries:
        for value in list(vars(sys.modules[library]).values()):
            if isinstance(value, ModuleType) and is_installed(value.__name__):
                read.add(value.__name__)
    return read & sys.modules.keys()


def _values_of_slots(value: object) -> dict[str, object]:
    """Return the attributes of an object that its classes keep in slots."""
    values = {}
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        # A class may name its only slot by a text in place of a list.
        for name in [names] if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                values[name] = getattr(value, name)
    return values


def _ingredients_of_copy(value: object) -> list[object]:
    """Return the arguments, the state and the entries that a copy of an object is made of.

    Raises:
        TypeError: It cannot be copied, as an iterator. A class may raise anything else.
    """
    ingredients: list[object] = []
    # (what makes the copy, its arguments, the state, list entries, dictionary entries), as for
    # pickle's protocol 2; each of the last three may be None.
    recipe = value.__reduce_ex__(2)
    if isinstance(recipe, str):  # the name of a global
        return [recipe]
    for entry in recipe[1:]:
        if entry is not None:
            ingredients.append(list(entry) if isinstance(entry, Iterator) else entry)
    return ingredients


def _are_handles(value: object) -> bool:
    """Return whether a value is a handle by which a hook can be removed, or a list of these.

    An empty list is none.
    """
    handles = value if isinstance(value, list) else [value]
    return bool(handles) and all(isinstance(handle, RemovableHandle) for handle in handles)


def _configs_in(*configs: object) -> Iterator[object]:
    """Yield configurations and those inside of them, at any depth."""
    for config in configs:
        yield config
        if isinstance(config, PreTrainedConfig):
            entries = vars(config).values()
            yield from _configs_in(
                *(entry for entry in entries if isinstance(entry, PreTrainedConfig))
            )


def bytes_of(values: Tensor | np.ndarray) -> bytes:
    """Return the bytes of the numbers of an array.

    Of an array of Python objects they are those of its `repr`. Of a tensor that is sparse or of a
    subclass, which has no bytes of its own, they are the name of its class.
    """
    if isinstance(values, np.ndarray):
        if values.dtype == object:
            return repr(values.tolist()).encode()
        return values.tobytes()
    if values.is_sparse or type(values) not in (Tensor, nn.Parameter):
        return str(type(values)).encode()
    octets = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return cast(bytes, octets.numpy().tobytes())


def _shortened(text: str) -> str:
    """Return a text, or its beginning and its digest if it has more than `LONGEST` letters."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 3]}... ({_text_digest(text)})"


def _text_digest(text: str) -> str:
    """Return the first 8 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
