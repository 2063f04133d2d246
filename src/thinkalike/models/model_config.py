"""The configuration of a model that a caller names in any of several ways."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from thinkalike.config import ModelConfig, model_named, options
from thinkalike.errors import checked_path
from thinkalike.files import is_there


def configured(
    model: ModelConfig | str | os.PathLike[str], settings: Mapping[str, object]
) -> ModelConfig:
    """Return the configuration of the model that a caller names, with some settings changed.

    Args:
        model: A configuration, a path, a model's everyday name, or a repository of the hub. A
            `str` that is a known name is never taken for a path.
        settings: The settings to change, by name, such as {"dtype": torch.float16}. The values of
            dtype and device may be text or objects of torch.
    """
    plain_settings = dict(settings)
    for name in ("dtype", "device"):
        if name in settings:
            plain_settings[name] = str(settings[name]).removeprefix("torch.")
    if isinstance(model, ModelConfig):
        return model_named(model, plain_settings)
    name_or_path = checked_path("model", model)
    is_known_name = name_or_path in options("model")  # an everyday name
    is_path = isinstance(model, os.PathLike) or (not is_known_name and is_there(name_or_path))
    if is_path:
        name_or_path = str(Path(name_or_path).absolute())
    return model_named(name_or_path, plain_settings)
