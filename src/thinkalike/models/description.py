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
    added_entries,
    code_text,
    content_of,
    functions_in,
    globals_read,
    is_installed,
    is_of_library,
    is_of_user,
    is_own_class,
)
from thinkalike.errors import flat
from thinkalike.models.module_facts import UNREAD, config_of_text_model, known_entries
from thinkalike.models.patched_libraries import added_to_libraries
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

# The attribute of a module that holds the hook of accelerate around its forward pass.
HOOK_OF_ACCELERATE = "_hf_hook"

# The attributes of a dropout that only training reads.
OF_DROPOUT = {*vars(nn.Dropout())} - {*vars(nn.Module())}

# Attributes of every nn.Module, which are weights, modules, or what only training and saving read.
OF_EVERY_MODULE = {*vars(nn.Module()), "_is_full_backward_hook"}

# Attributes of models of transformers that say where a model is from, where its weights are, and
# how they are saved, and not what it does. Of an adapter, its layers have what they read of the
# configuration. A layer that runs a kernel has another forward.
OF_ORIGIN = {
    "name_or_path",
    "warnings_issued",
    "generation_config",
    "hf_device_map",
    "_is_hf_initialized",
    "peft_config",
    "_hf_peft_config_loaded",
    "_weight_conversions",
    "_use_kernels",
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
        """Note the names of the root's modules and weights; nothing is described yet.

        `changing` are the ways to objects that a pass changes, whose content is left out.
        """
        self.changing = changing

        # The owner of the object that is being described now, such as the path of its module.
        self.owner = ""
        # The steps that lead from the owner to this object.
        self.steps: Steps = ()
        # The `id`s of this object and of the objects that hold it, since one may hold itself.
        self.described: list[int] = []

        # The text of each object so far, how many objects it holds, and the text of each class.
        self.texts: dict[Steps, str] = {}
        self.held_counts: dict[Steps, int] = {}
        self.classes: dict[type, str] = {}

        # Whether the texts cover everything that decides what the objects do. They do not if code
        # of a user runs, which can read anything: attributes of a class, files, the environment.
        self.is_complete = True

        # The names of the root's modules and weights, and its configurations, by `id`.
        self.paths = {id(module): path for path, module in root.named_modules()}
        self.weights: dict[int, str] = {}
        for name, weight in root.named_parameters(remove_duplicate=False):
            self.weights[id(weight)] = name
        configs = _configs_in(config_of_text_model(root), getattr(root, "config", None))
        self.configs = {id(config) for config in configs}

    def text_of(self, value: object, name: str = "") -> str:
        """Return a value as text, and store the text under the steps that lead to the value.

        By the steps, a later description of the same objects can be compared with this one.
        The first two steps are the owner (such as the path of a module) and the name of its
        attribute. Each further step is the position of a value within the one that holds it.

        A value that a forward pass changes (its steps are in `changing`) has one fixed text.

        Args:
            value: The value that is described.
            name: The name of the attribute whose value it is. It is ignored for a value inside
                another value that is being described.
        """
        steps_outside = self.steps
        position = self.held_counts.get(steps_outside, 0)
        self.held_counts[steps_outside] = position + 1
        self.steps = (*steps_outside, position) if steps_outside else (self.owner, name)
        try:
            text = CHANGING if self.steps in self.changing else self._text(value)
            self.texts[self.steps] = text
            return text
        finally:
            self.steps = steps_outside

    def changed_by(self, later: Description) -> set[Steps]:
        """Return the steps of the objects that a later description describes differently.

        If an object's text differs because of an object inside it, only the inner one is returned.
        An object that holds more or fewer objects than before is returned itself, since the steps
        to those inside it are numbers, which shift. An object that the later description lacks
        has not changed.
        """
        with_other_text: set[Steps] = set()
        for steps, text in self.texts.items():
            if later.texts.get(steps, text) != text:
                with_other_text.add(steps)
        with_other_size: set[Steps] = set()
        for steps in with_other_text:
            if self.held_counts.get(steps, 0) != later.held_counts.get(steps, 0):
                with_other_size.add(steps)
        # The steps to an object are the steps to the one that holds it, and one more.
        holders_of_changes = {steps[:-1] for steps in with_other_text}
        innermost = with_other_text - holders_of_changes
        return with_other_size | innermost

    def _text(self, value: object) -> str:
        """Return a value as text; a long text is replaced by its beginning and a digest.

        Only the name of its class is returned for an object that contains itself, at the inner
        place, and for one that is more than DEEPEST objects deep inside others.
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
        """Return the text of an object by its type, with the texts of the objects that it holds.

        Members of dictionaries and sets are sorted as text, so that their order does not count.
        Attributes that change no output, such as those with "dropout" in their name (`UNREAD`),
        are left out.
        """
        if isinstance(value, Tensor | np.ndarray):
            return self._array_text(value)
        if isinstance(value, nn.Module):
            if id(value) in self.paths:  # it is described by itself
                return f"module {self.paths[id(value)]}"
            return self._module_outside(value)
        if isinstance(value, dict | OrderedDict | MappingProxyType):
            entries = []
            for key, entry in value.items():
                entries.append(f"{self.text_of(key)}: {self.text_of(entry)}")
            return f"{{{', '.join(sorted(entries))}}}"
        if isinstance(value, list | tuple):
            return f"[{', '.join([self.text_of(entry) for entry in value])}]"
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(self.text_of(entry) for entry in value))}}}"
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
        text_of_attributes = self.text_of(attributes) if attributes else ""
        return f"{text_of_class}{text_of_attributes}"

    def _state_text(self, value: object) -> str:
        """Return the state of an object that has no `__dict__`, as text.

        The state is what `copy` or `pickle` would make a copy from. The text is "" if there is no
        state, or if the object cannot be copied; then the description is marked as incomplete.
        """
        try:
            ingredients = _ingredients_of_copy(value)
        except Exception:  # a class may refuse copies with any exception
            self.is_complete = False
            return ""
        return self.text_of(ingredients) if ingredients else ""

    def _array_text(self, value: Tensor | np.ndarray) -> str:
        """Return an array as text: its dtype, its shape and a digest of its values.

        A parameter of the described model is only named. A tensor on the meta device, which has no
        values, has no digest.
        """
        if id(value) in self.weights:
            return f"weight {self.weights[id(value)]}"
        shape = tuple(value.shape)
        if isinstance(value, Tensor) and value.is_meta:
            return f"{value.dtype} {shape} {NO_VALUES}"
        digest = hashlib.sha256(bytes_of(value)).hexdigest()[:8]
        return f"{value.dtype} {shape} ({digest})"

    def _module_outside(self, module: nn.Module) -> str:
        """Return as text a module that is not registered in the described model.

        Such a module may be in a plain list. The text has its weights and buffers, and the class
        and attributes of each of its submodules.
        """
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        submodules = {}
        for path, submodule in module.named_modules():
            submodules[path] = [self.class_text(type(submodule)), *self.attributes(submodule)]
        text_of_tensors = self.text_of(tensors)
        text_of_submodules = self.text_of(submodules)
        return f"{text_of_tensors} {text_of_submodules}"

    def _config_text(self, config: PreTrainedConfig) -> str:
        """Return the class and the entries of a configuration as text.

        The entries of the described model's own configuration are left out, since they are no
        part of its traits.
        """
        class_name = type(config).__name__
        if id(config) in self.configs:
            return class_name
        settings = known_entries(config)
        if not settings:
            return class_name
        entries = sorted(repr(entry) for entry in flat(settings).items())
        return f"{class_name}{entries}"

    def _callable_text(self, value: object) -> str:
        """Return a function, method, partial or built-in function as text; else "".

        The text names all that decides what a call of it does.
        """
        if isinstance(value, FunctionType):
            return self.function_text(value)
        if isinstance(value, MethodType):
            return f"{self.text_of(value.__func__)} of {self.text_of(value.__self__)}"
        if isinstance(value, functools.partial | functools.partialmethod):
            parts = [self.text_of(part) for part in (value.func, value.args, value.keywords)]
            return f"partial({', '.join(parts)})"
        if isinstance(value, functools._lru_cache_wrapper):
            return f"cache of {self.text_of(value.__wrapped__)}"
        if isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        return ""

    def attributes(self, module: nn.Module) -> Iterator[tuple[str, str]]:
        """Yield (name, text) for what a module has beside its weights and submodules.

        These are its attributes, its hooks that may change states, and its buffers that are not
        persistent. Attributes that every module has, that say where a model is from, or that no
        pass of an evaluated model reads are left out, such as the probability of a dropout.
        """
        unread_names = OF_EVERY_MODULE | OF_ORIGIN | OF_USE
        is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
        if is_dropout and not is_own_class(type(module)):
            unread_names |= OF_DROPOUT
        for name, value in vars(module).items():
            if name in HOOKS and value:
                hooks = [hook for hook in value.values() if may_change_states(hook)]
                if hooks:
                    yield name, self.text_of(hooks, name)
            elif name == "training" and value:
                yield name, "True"
            elif name == HOOK_OF_ACCELERATE:
                if may_change_states(value):
                    yield name, self.text_of(value, name)
            elif name in unread_names or UNREAD.search(name.lstrip("_")):
                continue
            elif _are_handles(value):
                continue  # they remove hooks, which are described with the module that runs them
            elif id(value) not in self.configs:
                yield name, self.text_of(value, name)
        for name in module._non_persistent_buffers_set:
            yield name, self.text_of(module._buffers.get(name), name)

    def class_text(self, described_class: type) -> str:
        """Return the name of a class, with a digest of functions that were added to it.

        These are functions and methods, such as ones that a user replaced, that the library of the
        class did not define. Without any, the text is the name alone. Each class is described only
        once; its text is then stored. A class of the user's own marks the description as
        incomplete (`is_complete`), since its code may read anything, such as a file.
        """
        if described_class in self.classes:
            return self.classes[described_class]
        name = f"{described_class.__module__}.{described_class.__qualname__}"
        self.classes[described_class] = name  # the class may contain itself
        # `self.steps` is the way to the object that is described now. The stored text serves all
        # objects of the class, so it must not depend on the way to the first of them.
        steps_outside = self.steps
        self.steps = ("class", name)
        if is_own_class(described_class):
            self.is_complete = False
        functions = []
        for owner, _, entry in added_entries(described_class):
            for added in _functions_or_itself(entry):
                functions.append(f"{owner.__qualname__}.{self.text_of(added)}")
        self.steps = steps_outside
        if functions:
            digest = _text_digest(" ".join(sorted(functions)))
            self.classes[described_class] = f"{name} ({digest})"
        return self.classes[described_class]

    def function_text(self, function: FunctionType) -> str:
        """Return the name of a function, with a digest of all that decides what it does.

        The digest is of its code, its defaults, the variables of an outer function that it reads,
        and the globals that it reads and that belong to no library. A function of an installed
        library has no digest, unless it was defined inside another function. A function of no
        library marks the description as incomplete, since it may read anything, such as a file.
        """
        name = f"{function.__module__}.{function.__qualname__}"
        is_defined_inside = "<locals>" in name or "<lambda>" in name
        if is_of_user(function):
            self.is_complete = False
        elif not is_defined_inside:  # a library's function, which its name identifies
            return name
        outer_variables = [content_of(cell) for cell in function.__closure__ or ()]
        defaults = [function.__defaults__, function.__kwdefaults__]
        own_globals = {}
        names_of_globals = globals_read(function.__code__) & function.__globals__.keys()
        for name_of_global in sorted(names_of_globals):
            value = function.__globals__[name_of_global]
            if not is_of_library(value):
                own_globals[name_of_global] = value
        texts = [
            code_text(function.__code__),
            self.text_of(defaults),
            self.text_of(outer_variables),
            self.text_of(own_globals),
        ]
        return f"{name} ({_text_digest(' '.join(texts))})"

    def patches(self) -> dict[Trait, str]:
        """Return, as text, code of the user in libraries which the described objects use.

        Such code belongs to no installed package; for example, the user has replaced a method of
        a library's class. Three sets of Python modules are searched, all of installed packages:

        - the libraries that compute in a forward pass, such as torch and transformers,
        - the modules that define the classes described so far, and the base classes of these,
        - the modules that those modules hold under a name, as after `import torch.nn as nn`.

        A function under a name that the library's code never uses is left out, since it replaces
        nothing. For example, `torch.compile` leaves compiled functions under new names in a
        library.

        Returns:
            The text of the code by its trait: (module or class of a library, name in it).
        """
        # `added_to_libraries` searches the libraries of a forward pass without being told.
        libraries = set()
        for described_class in self.classes:
            libraries |= {owner.__module__ for owner in described_class.__mro__}
        libraries = set(filter(is_installed, libraries))
        libraries |= _libraries_read(libraries)  # the modules that they hold under a name
        patches: dict[Trait, str] = {}
        for (owner, name), entry in added_to_libraries(libraries).items():
            texts = []
            for added in _functions_or_itself(entry):
                texts.append(self.text_of(added, f"{owner} {name}"))
            patches[owner, name] = " ".join(texts)
        return patches


def _functions_or_itself(entry: object) -> list[object]:
    """Return the functions that an entry of a class wraps, or the entry itself without any."""
    functions: list[object] = [*functions_in(entry)]
    return functions or [entry]


def _libraries_read(libraries: Collection[str]) -> set[str]:
    """Return the installed Python modules that some Python modules have among their globals.

    For example, a library with `import torch.nn.functional as F` has torch.nn.functional.

    Args:
        libraries: The names of Python modules that are imported already.
    """
    names_of_modules = set()
    for library in libraries:
        for value in list(vars(sys.modules[library]).values()):
            if isinstance(value, ModuleType) and is_installed(value.__name__):
                names_of_modules.add(value.__name__)
    return names_of_modules & sys.modules.keys()  # a module may have been removed from there


def _values_of_slots(value: object) -> dict[str, object]:
    """Return the values of an object's slots (`__slots__` of its classes), by name.

    A slot without a value is left out.
    """
    values = {}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        slot_names = [slots] if isinstance(slots, str) else slots  # a str names a single slot
        for name in slot_names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                values[name] = getattr(value, name)
    return values


def _ingredients_of_copy(value: object) -> list[object]:
    """Return what `pickle` would store of an object: arguments of its class, state and entries.

    Raises:
        TypeError: The object cannot be copied, such as a generator. A class may also raise any
            other exception.
    """
    # In pickle's protocol 2: (function that makes the copy, its arguments, state, iterator of list
    # entries, iterator of dictionary entries). Each of the last three may be None or missing.
    recipe = value.__reduce_ex__(2)
    if isinstance(recipe, str):  # the name of a global variable that holds the object
        return [recipe]
    ingredients: list[object] = []
    for entry in recipe[1:]:
        if entry is not None:
            ingredients.append(list(entry) if isinstance(entry, Iterator) else entry)
    return ingredients


def _are_handles(value: object) -> bool:
    """Return whether a value is a handle that removes a hook, or a list with such handles only.

    It is false for an empty list.
    """
    handles = value if isinstance(value, list) else [value]
    return bool(handles) and all(isinstance(handle, RemovableHandle) for handle in handles)


def _configs_in(*configs: object) -> Iterator[object]:
    """Yield each of some configurations, and the configurations in its sections at any depth."""
    for config in configs:
        yield config
        if isinstance(config, PreTrainedConfig):
            entries = vars(config).values()
            yield from _configs_in(
                *(entry for entry in entries if isinstance(entry, PreTrainedConfig))
            )


def bytes_of(values: Tensor | np.ndarray) -> bytes:
    """Return the values of a NumPy array or a tensor as bytes, from which to compute a hash.

    An array of Python objects is turned into text first. A tensor that is sparse or of a subclass
    may have no plain values, so the bytes are only the name of its class.
    """
    if isinstance(values, np.ndarray):
        if values.dtype == object:
            return repr(values.tolist()).encode()
        return values.tobytes()
    if values.is_sparse or type(values) not in (Tensor, nn.Parameter):
        return str(type(values)).encode()
    value_bytes = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return cast(bytes, value_bytes.numpy().tobytes())


def _shortened(text: str) -> str:
    """Return a text, or its beginning and its digest if it has more than `LONGEST` letters."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 3]}... ({_text_digest(text)})"


def _text_digest(text: str) -> str:
    """Return the first 8 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
