"""What a model computes beyond what its weights and its configuration say.

Two modules with equal weights and settings can still give different logits: rotary frequencies are buffers that no
checkpoint holds, the scale of attention is an attribute, and anyone can replace an activation, a `forward` or a
function of a library. `traits_of` lists all of this by its place in the module, as text that says why two models
differ. `sample_digest` is of what the model gives for fixed tokens, and so covers everything that these tokens show.

Texts hold no address, path of a file or line number, so that the same code gives the same text in another process.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import sys
import sysconfig
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig

from thinkalike.errors import ModelError, flat, one_line
from thinkalike.models.module_facts import UNREAD, entries_of, known_entries, relative_error, sample_tokens, text_config
from thinkalike.models.proof import may_change_states
from thinkalike.models.survey import passing

PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, range, slice, type(None), type(Ellipsis))
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# attributes of every nn.Module, which are weights, modules, or what only training and saving read
OF_EVERY_MODULE = {*vars(nn.Module()), "_is_full_backward_hook"}
# attributes of models of transformers that say where a model is from, and where its weights are, and not what it does
OF_ORIGIN = {"name_or_path", "warnings_issued", "generation_config", "hf_device_map", "_hf_hook", "_is_hf_initialized"}
OF_ORIGIN |= {"peft_config", "_hf_peft_config_loaded"}  # the layers of an adapter have what they read of it
# attributes that a first pass with output_hidden_states=True and torch.compile leave behind
OF_USE = {"_output_capturing_hooks_installed", "_is_torch_compile", "_compiled_call_impl", "_compile_kwargs"}
DEEPEST = 8  # objects inside of objects that are told apart
CHANGING = "(changes)"  # stands for what a pass changes
NO_VALUES = "(no values)"  # of a tensor of which only the shape is known
UNKNOWN = "?"
LONGEST = 120  # letters of a text that is not replaced by its digest

LONG_ROW = 512  # tokens at most, so that a change of late positions shows
SHORT_ROW = 64  # tokens at least of a large model
MULTIPLICATIONS = 2**36  # of the long row, about


Steps = tuple[str | int, ...]  # to an object, from the owner of a trait
Trait = tuple[str, str]  # the path of a module, or the name of a library, and the name of what it has; "": its class


def traits_of(module: nn.Module) -> dict[Trait, str]:
    """Return what decides the output of a module beside weights, persistent buffers and its configuration, as text.

    Traits of each module inside are its class, attributes, hooks, and buffers that no checkpoint holds. Traits of a
    library are functions that someone put into it.
    """
    return _traits(module, _Description(module))


def _traits(module: nn.Module, describe: _Description) -> dict[Trait, str]:
    traits: dict[Trait, str] = {}
    for path, part in module.named_modules():
        describe.owner = path
        traits[path, ""] = describe.class_text(type(part))
        traits |= {(path, name): text for name, text in describe.attributes(part)}
    describe.owner = "libraries"
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        if hooks := getattr(torch_module, name):
            traits["torch", name] = describe(list(hooks.values()), name)
    return traits | describe.patches() | _attention(module, describe)


def traits_that_differ(first: nn.Module, second: nn.Module) -> dict[Trait, tuple[str, str]]:
    """Return the traits in which two modules differ, with the text of each of the two.

    Of a module whose class differs only the class is listed, since its attributes mean something else, and of modules
    that only one of the two has nothing: their weights differ. If configurations differ, what follows from them alone
    is left out.
    """
    ours = traits_of(first)
    theirs = traits_of(second)
    same_settings = entries_of(first) == entries_of(second)
    expected = [{}, {}] if same_settings else [_traits_from_settings(first), _traits_from_settings(second)]
    classes = [{path: text for (path, name), text in traits.items() if not name} for traits in (ours, theirs)]
    only_one_has = classes[0].keys() ^ classes[1].keys()
    replaced = {path for path in classes[0].keys() & classes[1].keys() if classes[0][path] != classes[1][path]}
    found: dict[Trait, tuple[str, str]] = {}
    for path, name in sorted(ours.keys() | theirs.keys()):
        if path in only_one_has or (name and path in replaced):
            continue
        texts = (ours.get((path, name), "none"), theirs.get((path, name), "none"))
        usual = tuple(traits.get((path, name), UNKNOWN) for traits in expected)
        follows = all(text == made or made.endswith(NO_VALUES) for text, made in zip(texts, usual, strict=True))
        if texts[0] != texts[1] and not follows:
            found[path, name] = texts
    return found


def _traits_from_settings(module: Any) -> dict[Trait, str]:
    """Return the traits that the class of a module gives to it by its configuration, without weights or values.

    Nothing if the class cannot be built from its configuration alone.
    """
    try:
        with torch.device("meta"):
            return traits_of(type(module)(deepcopy(module.config)).eval())
    except Exception:  # whatever a class raises that is made in another way
        return {}


def sample_digest(model: Any) -> str:
    """Return the SHA-256 of what a FrozenModel gives for fixed tokens, as 16 hexadecimal digits.

    It is of the bits of the output for two short rows, and of the states after the last block for a row as long as
    `LONG_ROW`, the context or the size of the model allows. One thread computes them: sums of several threads round
    differently.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outputs = _sample_outputs(model, model.context)
    finally:
        torch.set_num_threads(threads)
    digest = hashlib.sha256()
    for output in outputs:
        digest.update(_bytes_of(output))
    return digest.hexdigest()[:16]


def output_distance(first: Any, second: Any) -> float:
    """Return the largest difference of what two models of one shape give for fixed tokens, relative to its size."""
    context = min(first.context, second.context)
    pairs = zip(_sample_outputs(first, context), _sample_outputs(second, context), strict=True)
    return max(relative_error(theirs.cpu().float(), ours.cpu().float()) for ours, theirs in pairs)


@torch.no_grad()
def _sample_outputs(model: Any, context: int) -> tuple[Tensor, Tensor]:
    """Return the states after the last block for one long row of fixed tokens, and the output for two short ones.

    Args:
        context: How many tokens a row has at most.
    """
    longest = min(LONG_ROW, max(MULTIPLICATIONS // max(model.parameters(), 1), SHORT_ROW))
    long_row = sample_tokens(model.vocabulary, context, rows=1, at_most=longest)
    short_rows = sample_tokens(model.vocabulary, context)
    with passing(model.name):
        return model.head(long_row, model.n_layers - 1), model.full(short_rows)


def copied(module: nn.Module) -> Any:
    """Return a copy of a module in which replaced `forward`s and hooks run the copy's modules, not the original's.

    `deepcopy` hands on a function as it is, and with it the modules in its closure, so that a copy would go on to
    compute with the weights of the original.

    Raises:
        ModelError: An attribute cannot be copied.
    """
    copies: dict[int, Any] = {}
    try:
        copy = deepcopy(module, copies)
    except Exception as error:  # whatever an object raises that is copied
        _name_what_cannot_be_copied(module)
        raise ModelError(f"the model cannot be copied ({type(error).__name__}: {one_line(error)})") from error
    for part in copy.modules():
        holders = [vars(part), *(getattr(part, name) for name in HOOKS)]
        for holder in holders:
            for name, value in list(holder.items()):
                if isinstance(value, FunctionType | MethodType | functools.partial):
                    holder[name] = _with_copies(value, copies)
    return copy


def _name_what_cannot_be_copied(module: nn.Module) -> None:
    """Raise a ModelError for the first attribute of a module, or of one inside, that cannot be copied by itself."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_modules", "_parameters", "_buffers"):
                continue
            try:
                deepcopy(value)
            except Exception as error:  # whatever an object raises that is copied
                attribute = f"{path}.{name}".lstrip(".")
                if name in HOOKS:
                    attribute = f"a hook in {attribute}"
                reason = f"{type(error).__name__}: {one_line(error)}"
                raise ModelError(
                    f"{attribute} of the model in memory cannot be copied ({reason}); remove it from the model, or "
                    "save the model and give its folder"
                ) from error


def _with_copies(value: Any, copies: Mapping[int, Any]) -> Any:
    """Return a function, or what its closure holds, with copies in the place of objects that were copied."""
    if isinstance(value, nn.Module | Tensor):
        return copies.get(id(value), value)
    if isinstance(value, MethodType):
        return MethodType(_with_copies(value.__func__, copies), _with_copies(value.__self__, copies))
    if isinstance(value, functools.partial):
        arguments = [_with_copies(argument, copies) for argument in value.args]
        keywords = {name: _with_copies(argument, copies) for name, argument in value.keywords.items()}
        return functools.partial(_with_copies(value.func, copies), *arguments, **keywords)
    if not isinstance(value, FunctionType) or not value.__closure__:
        return value
    before = [_content(cell) for cell in value.__closure__]
    after = [_with_copies(content, copies) for content in before if content is not value]
    if len(after) < len(before) or all(new is old for new, old in zip(after, before, strict=True)):
        return value
    code, names, defaults = value.__code__, value.__globals__, value.__defaults__
    function = FunctionType(code, names, value.__name__, defaults, tuple(map(CellType, after)))
    function.__kwdefaults__, function.__qualname__ = value.__kwdefaults__, value.__qualname__
    function.__module__ = value.__module__
    return function


def identity_of(model: Any) -> list[Any]:
    """Return what tells a FrozenModel from another with the same weights and settings: its traits and sample outputs.

    What a pass changes, such as the number in which a hook counts its calls or the list to which it appends, is state
    and identifies nothing. All that stands beside it, such as a factor in the same dictionary, does.
    """
    before, after = _Description(model.module), _Description(model.module)
    earlier = _traits(model.module, before)
    digest = sample_digest(model)
    later = _traits(model.module, after)
    steady = _Description(model.module, before.changed_by(after))
    traits = _traits(model.module, steady)
    lasting = earlier.keys() & later.keys()  # an attribute that a pass adds is state as well
    return [digest, sorted((name, text) for name, text in traits.items() if name in lasting)]


def _attention(module: Any, describe: _Description) -> dict[Trait, str]:
    """Return the function that computes attention, by its name, and with its code if it was added to transformers'."""
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if not isinstance(name, str):
        return {}
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    function = ALL_ATTENTION_FUNCTIONS.get(name)
    is_own = function is not None and not _is_installed(getattr(function, "__module__", ""))
    return {("", "attention"): f"{name} {describe(function, 'attention')}" if is_own else name}


class _Description:
    """Describes objects as text, with the modules and weights of one root module by their paths.

    Objects have steps: the owner and name of a trait, then the number of the object inside of each that holds it.

    Args:
        root: The module whose traits are described.
        changing: The steps of objects that are described as changing, whatever they hold.
    """

    def __init__(self, root: nn.Module, changing: Collection[Steps] = ()):
        self.changing = changing
        self.owner = ""  # of the traits that are being described: the path of a module, or libraries
        self.steps: Steps = ()  # to the object that is being described
        self.texts: dict[Steps, str] = {}
        self.inside: dict[Steps, int] = {}  # how many objects the one at these steps holds
        self.paths = {id(part): path for path, part in root.named_modules()}
        self.weights = {id(weight): name for name, weight in root.named_parameters(remove_duplicate=False)}
        self.configs = {id(config) for config in _configs_in(text_config(root), getattr(root, "config", None))}
        self.classes: dict[type, str] = {}
        self.described: list[int] = []  # objects that are being described, which may contain themselves

    def __call__(self, value: Any, name: str = "") -> str:
        """Return a value as text; the name is that of a trait."""
        outside = self.steps
        number = self.inside.get(outside, 0)
        self.inside[outside] = number + 1
        self.steps = (*outside, number) if outside else (self.owner, name)
        try:
            text = CHANGING if self.steps in self.changing else self._text(value)
            self.texts[self.steps] = text
            return text
        finally:
            self.steps = outside

    def changed_by(self, later: _Description) -> set[Steps]:
        """Return the steps of the innermost objects that a later description has another text for.

        An object that holds more or fewer objects than before has changed as a whole.
        """
        changed = {steps for steps, text in self.texts.items() if later.texts.get(steps, text) != text}
        holders = {steps[:-1] for steps in changed}
        resized = {steps for steps in changed if self.inside.get(steps, 0) != later.inside.get(steps, 0)}
        return resized | (changed - holders)

    def _text(self, value: Any) -> str:
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, PLAIN):
            return _brief(repr(value))
        if id(value) in self.described or len(self.described) >= DEEPEST:
            return type(value).__name__
        self.described.append(id(value))
        try:
            return _brief(self._inside(value))
        finally:
            self.described.pop()

    def _inside(self, value: Any) -> str:
        if isinstance(value, Tensor | np.ndarray):
            if id(value) in self.weights:
                return f"weight {self.weights[id(value)]}"
            shape = tuple(value.shape)
            if isinstance(value, Tensor) and value.is_meta:
                return f"{value.dtype} {shape} {NO_VALUES}"
            return f"{value.dtype} {shape} ({hashlib.sha256(_bytes_of(value)).hexdigest()[:8]})"
        if isinstance(value, nn.Module):
            return f"module {self.paths[id(value)]}" if id(value) in self.paths else self._module_outside(value)
        if isinstance(value, dict | OrderedDict | MappingProxyType):
            entries = sorted(f"{self(key)}: {self(entry)}" for key, entry in value.items())
            return f"{{{', '.join(entries)}}}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(self(entry) for entry in value)}]"
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(self(entry) for entry in value))}}}"
        if isinstance(value, type):
            return self.class_text(value)
        if isinstance(value, ModuleType):
            return value.__name__
        if callable(value) and (text := self._callable(value)):
            return text
        if isinstance(value, PreTrainedConfig):
            settings = {} if id(value) in self.configs else known_entries(value)
            return f"{type(value).__name__}{sorted(map(repr, flat(settings).items())) if settings else ''}"
        state = {name: entry for name, entry in getattr(value, "__dict__", {}).items() if not UNREAD.search(name)}
        return f"{self.class_text(type(value))}{self(state) if state else ''}"

    def _module_outside(self, module: nn.Module) -> str:
        """Return a module that is no submodule of the root, such as one in a list, with its weights."""
        weights = dict([*module.named_parameters(), *module.named_buffers()])
        parts = {path: [self.class_text(type(part)), *self.attributes(part)] for path, part in module.named_modules()}
        return f"{self(weights)} {self(parts)}"

    def _callable(self, value: Any) -> str:
        if isinstance(value, FunctionType):
            return self.function(value)
        if isinstance(value, MethodType):
            return f"{self(value.__func__)} of {self(value.__self__)}"
        if isinstance(value, functools.partial):
            return f"partial({self(value.func)}, {self(value.args)}, {self(value.keywords)})"
        if isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        return ""

    def attributes(self, part: nn.Module) -> Iterator[tuple[str, str]]:
        """Yield the attributes of a module by name, the buffers that no checkpoint holds, and the hooks of its pass."""
        is_dropout = isinstance(part, nn.modules.dropout._DropoutNd)
        for name, value in vars(part).items():
            if name in HOOKS and value:
                hooks = [hook for hook in value.values() if may_change_states(hook)]
                if hooks:
                    yield name, self(hooks, name)
            elif name == "training" and value:
                yield name, "True"
            elif name in OF_EVERY_MODULE | OF_ORIGIN | OF_USE or UNREAD.search(name.lstrip("_")) or is_dropout:
                continue
            elif _are_handles(value):
                continue  # the hooks themselves are described where they run
            elif id(value) not in self.configs:
                yield name, self(value, name)
        for name in part._non_persistent_buffers_set:
            yield name, self(part._buffers.get(name), name)

    def class_text(self, kind: type) -> str:
        """Return the name of a class, with a digest of the functions in it that its library did not define."""
        if kind not in self.classes:
            self.classes[kind] = name = f"{kind.__module__}.{kind.__qualname__}"  # the class may contain itself
            outside = self.steps
            self.steps = ("class", name)  # of its own, as a class is described but once, wherever it comes first
            functions = sorted(f"{owner.__qualname__}.{self(function)}" for owner, function in _own_functions(kind))
            self.steps = outside
            self.classes[kind] = f"{name} ({_digest(' '.join(functions))})" if functions else name
        return self.classes[kind]

    def function(self, function: FunctionType) -> str:
        """Return the name of a function, with a digest of its code, defaults, closure and globals unless installed."""
        name = f"{function.__module__}.{function.__qualname__}"
        if _is_installed(function.__module__) and "<locals>" not in name and "<lambda>" not in name:
            return name
        cells = [_content(cell) for cell in function.__closure__ or ()]
        defaults = [function.__defaults__, function.__kwdefaults__]
        names = sorted(_globals_read(function.__code__) & function.__globals__.keys())
        read = {name: function.__globals__[name] for name in names if not _is_library(function.__globals__[name])}
        parts = [_code_text(function.__code__), self(defaults), self(cells), self(read)]
        return f"{name} ({_digest(' '.join(parts))})"

    def patches(self) -> dict[Trait, str]:
        """Return the functions that replace some of the libraries in which the classes of the modules are defined.

        A function under a name that the code of its library never uses replaces nothing: `torch.compile` leaves what it
        compiled among the globals of a library, under names of its own.
        """
        libraries = {owner.__module__ for kind in list(self.classes) for owner in kind.__mro__}
        found: dict[Trait, str] = {}
        for library in sorted(filter(_is_installed, libraries)):
            names = _names_in_code(library)
            for name, value in vars(sys.modules[library]).items():
                if isinstance(value, FunctionType) and name in names and not _is_installed(value.__module__):
                    found[library, name] = self(value, f"{library} {name}")
        return found


def _own_functions(kind: type) -> Iterator[tuple[type, Callable[..., Any]]]:
    """Yield the functions of a class and its bases that are not as their installed library has them, with the class."""
    for owner in kind.__mro__:
        is_installed = _is_installed(owner.__module__)
        for name, value in list(vars(owner).items()):
            for function in _functions_in(value):
                is_defined_here = function.__module__ == owner.__module__ and function.__name__ == name
                if not (is_installed and (is_defined_here or _is_installed(function.__module__))):
                    yield owner, function


def _functions_in(value: Any) -> list[FunctionType]:
    """Return the functions that an entry of a class is or wraps."""
    wrapped = [value, *(getattr(value, name, None) for name in ("__func__", "fget"))]
    return [each for each in wrapped if isinstance(each, FunctionType)]


def _are_handles(value: Any) -> bool:
    """Return whether a value is a handle by which a hook can be removed, or a list of these."""
    handles = value if isinstance(value, list) else [value]
    return bool(handles) and all(isinstance(handle, RemovableHandle) for handle in handles)


def _configs_in(*configs: Any) -> Iterator[Any]:
    """Yield configurations and those inside of them."""
    for config in configs:
        yield config
        if isinstance(config, PreTrainedConfig):
            yield from _configs_in(*(each for each in vars(config).values() if isinstance(each, PreTrainedConfig)))


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(str(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@functools.cache
def _names_in_code(library: str) -> frozenset[str]:
    """Return the names that the code of a loaded library defines or reads; without such code, those that it has."""
    loaded = sys.modules[library]
    loader = getattr(getattr(loaded, "__spec__", None), "loader", None)
    try:
        code = loader.get_code(library)  # type: ignore[union-attr]
    except (AttributeError, ImportError, OSError):  # of a library that was not imported from a file
        code = None
    return frozenset(vars(loaded) if code is None else _names_used(code))


def _names_used(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in a code object and in the functions and classes inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_used(constant)
    return names


def _is_installed(module: str | None) -> bool:
    """Return whether the code of a module is that of an installed package, which its version tells.

    Functions that were made from text, as compilers make them, have None for their module.
    """
    if module is None:
        return False
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return True
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if loaded is None or module == "__main__":
        return False
    return file is None or str(Path(file).resolve()).startswith(_library_folders())


def _is_library(value: Any) -> bool:
    """Return whether a global is a library, or a function or class of one."""
    if isinstance(value, ModuleType):
        return _is_installed(value.__name__)
    return isinstance(value, type | BuiltinFunctionType) and _is_installed(value.__module__ or "builtins")


def _globals_read(code: CodeType) -> set[str]:
    """Return the names of the globals that a function reads, those of functions inside it included."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _globals_read(constant)
    return names


def _code_text(code: CodeType) -> str:
    """Return what a code object does, without where it was written."""
    constants = [_constant_text(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_freevars} {code.co_argcount}"


def _constant_text(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _code_text(constant)
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a variable that is not set yet
        return None


def _bytes_of(values: Any) -> bytes:
    if isinstance(values, np.ndarray):
        return repr(values.tolist()).encode() if values.dtype == object else values.tobytes()
    if values.is_sparse or type(values) not in (Tensor, nn.Parameter):
        return str(type(values)).encode()  # has no bytes of its own
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()  # type: ignore[no-any-return]


def _brief(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 3]}... ({_digest(text)})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
