"""What a plugin adds while it is loaded: each thing under a name of its own, for `stitch=`, `measure=` and the like."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from thinkalike.errors import PluginError

F = TypeVar("F", bound=Callable[..., Any])
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class MeasurePlugin:
    """A measure of layer pairs: a function of two layers, or a `LayerMeasure`, and how it is shown.

    Attributes:
        measure: of (n, d) and (n, e) tensors to a number; or a `LayerMeasure`; or, with settings, a function of
            `measure.` settings to either.
        title: what tables and figures call it.
        scale: the ends of the colours.
        is_distance: whether less is closer.
        settings: by name the default of each setting of its own, or a field such as `ranged(10, least=1)`.
    """

    measure: Any
    title: str
    scale: tuple[float, ...]
    is_distance: bool
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class OptimizerPlugin:
    """An optimiser of stitches.

    Attributes:
        make: of parameter groups, each with params, lr and weight_decay, to an optimiser of torch.
        lr: the peak rate where `stitch.lr` is not given.
        momenta: how many numbers it keeps of each weight, from which the memory of a step is told.
    """

    make: Callable[[list[dict[str, Any]]], Any]
    lr: float
    momenta: int


@dataclass
class Contents:
    """What one plugin adds, by kind and name."""

    stitch: dict[str, Callable[..., Any]] = field(default_factory=dict)
    measure: dict[str, MeasurePlugin] = field(default_factory=dict)
    optimizer: dict[str, OptimizerPlugin] = field(default_factory=dict)
    callback: dict[str, Callable[..., Any]] = field(default_factory=dict)


_filling: Contents | None = None  # of the plugin that is being loaded


@contextlib.contextmanager
def filling() -> Iterator[Contents]:
    """Gather what is registered while the context is open."""
    global _filling
    before, _filling = _filling, Contents()
    try:
        yield _filling
    finally:
        _filling = before


def register_stitch(name: str) -> Callable[[F], F]:
    """Register a stitch φ: a function of both widths to an `nn.Module` from (..., d) to (..., e).

    What the module is when it is made is where training begins; its weights are drawn from the job's seed.
    """
    return lambda make: _added("stitch", name, make, make)


def register_measure(
    name: str,
    measure: Any = None,
    *,
    title: str | None = None,
    scale: Sequence[int | float] = (0.0, 1.0),
    is_distance: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Register a measure of layer pairs, as a decorator of a function or with a `LayerMeasure`; see `MeasurePlugin`."""

    def register(measure: Any) -> Any:
        plugin = MeasurePlugin(
            measure, title or name.replace("_", " "), tuple(map(float, scale)), is_distance, settings or {}
        )
        return _added("measure", name, plugin, measure)

    return register if measure is None else register(measure)


def register_optimizer(name: str, *, lr: float, momenta: int = 2) -> Callable[[F], F]:
    """Register an optimiser of stitches; see `OptimizerPlugin`."""
    return lambda make: _added("optimizer", name, OptimizerPlugin(make, lr, momenta), make)


def register_callback(name: str) -> Callable[[F], F]:
    """Register a callback of Lightning: a function without arguments that makes one, or the class itself."""
    return lambda make: _added("callback", name, make, make)


def _added(kind: str, name: str, content: Any, given: Any) -> Any:
    """Note a thing under its name; returns what was given, and notes nothing where no plugin is being loaded.

    Raises:
        PluginError: the name is none, or the plugin has given it before.
    """
    if not NAME.fullmatch(name):
        raise PluginError(f"a {kind} cannot be called {name!r}: take small letters, digits and _, such as my_{kind}")
    if _filling is not None:
        own = getattr(_filling, kind)
        if name in own:
            raise PluginError(f"the {kind} {name} is registered twice; give each a name of its own")
        own[name] = content
    return given
