"""What tables and figures call a model, so that no two models of a result have one name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thinkalike.config import ModelConfig

# the settings by which models of one name are told apart
IDENTIFYING = (
    "hub_id", "revision", "path", "index", "side", "processing", "dtype", "quantization", "context", "seed", "device",
)  # fmt: skip


def label(config: ModelConfig) -> str:
    """Return the everyday name of a model, or of its folder or repository, with the revision if one is asked for."""
    places = {"local": config.path, "hub": config.path or config.hub_id}
    name = Path(str(places[config.name])).name if config.name in places else config.name
    return f"{name}@{config.revision}" if config.revision else name


def told_apart(configs: Sequence[ModelConfig]) -> list[str]:
    """Return the labels of models; where different ones share a label, with the settings in which they differ.

    Where none of the settings that identify a model differs, they are numbered.
    """
    labels = [label(config) for config in configs]
    pairs = list(zip(labels, configs, strict=True))
    whole = [f"{own}{_what_differs(config, _sharing(own, labels, configs))}" for own, config in pairs]
    return [
        f"{own}#{configs.index(config) + 1}" if _ambiguous(own, config, whole, configs) else own
        for own, config in zip(whole, configs, strict=True)
    ]


def _ambiguous(own: str, config: ModelConfig, labels: Sequence[str], configs: Sequence[ModelConfig]) -> bool:
    return any(name == own and each != config for name, each in zip(labels, configs, strict=True))


def _sharing(own: str, labels: Sequence[str], configs: Sequence[ModelConfig]) -> list[ModelConfig]:
    return [config for name, config in zip(labels, configs, strict=True) if name == own]


def _what_differs(config: ModelConfig, others: Sequence[ModelConfig]) -> str:
    """Return the settings by which a model differs from others of its label, in brackets, or nothing."""
    differing = [name for name in IDENTIFYING if any(getattr(each, name) != getattr(config, name) for each in others)]
    shown = [f"{name}={_short(name, config, others)}" for name in differing]
    return f"[{','.join(shown)}]" if shown else ""


def _short(name: str, config: ModelConfig, others: Sequence[ModelConfig]) -> str:
    """Return a setting as text; of a path, as many of its last parts as tell it from those of the others."""
    if name != "path" or not all(each.path for each in others):
        return str(getattr(config, name))
    paths = {Path(str(each.path)) for each in others}
    count = next((n for n in range(1, 99) if len({path.parts[-n:] for path in paths}) == len(paths)), 99)
    return "/".join(Path(str(config.path)).parts[-count:])
