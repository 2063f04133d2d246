"""What config.json, or a GGUF file, says of a checkpoint."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from pathlib import Path

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, short
from thinkalike.models.bounds import check_counts, most_tensors_in
from thinkalike.models.checkpoints import (
    JsonObject,
    checkpoint_json,
    enclosing_folder,
    gguf_in,
    named_folder,
)

# The entries of which a config.json has one: without it, a class takes its default size.
SIZES = re.compile(r"layers?$|blocks?|_config$|^auto_map$")

# The most bytes of a config.json, of which transformers makes many copies.
LARGEST_CONFIG = 2**24


def read_config_json(config: ModelConfig, place: str) -> JsonObject:
    """Return the config.json of a checkpoint, or what a GGUF file states in its place.

    Args:
        config: The configuration of the model.
        place: The folder, GGUF file or repository that is read.

    Raises:
        ModelError: The file asks for code of the hub, states a `model_type` and no number of
            blocks, or its `architectures` is not a list of names.
    """
    import huggingface_hub

    path = Path(place)
    if named_folder(config) is None:
        file = huggingface_hub.hf_hub_download(place, "config.json", revision=config.revision)
        path = Path(file).parent
    config_json = _config_json_in(path)
    entry_with_code = _code_of_the_hub(config_json)
    if entry_with_code:
        raise ModelError(
            f"config.json of {path} says {entry_with_code}, which is code of the hub and is never "
            "run; remove it"
        )
    class_names = config_json.get("architectures") or []
    if not isinstance(class_names, list) or not all(isinstance(name, str) for name in class_names):
        raise ModelError(
            f"config.json of {path} says architectures={short(class_names)}, which must be a list "
            'of names of classes, such as ["GPT2LMHeadModel"]'
        )
    has_sizes = any(SIZES.search(name) for name in config_json)
    if "model_type" in config_json and not has_sizes:
        raise ModelError(
            f"config.json of {path} states no number of blocks, such as num_hidden_layers; add "
            "its sizes"
        )
    return config_json


def known_config_json(place: Path) -> JsonObject:
    """Return the config.json of a folder, or what a GGUF file states in its place.

    It is {} if the file is missing or damaged; loading the model reports that.
    """
    with contextlib.suppress(OSError, ModelError):
        return _config_json_in(place)
    return {}


def _config_json_in(place: Path) -> JsonObject:
    """Return the settings of a checkpoint: from its GGUF file if it has one, or its config.json.

    The stated sizes are checked against the files of weights.
    """
    gguf_file = gguf_in(place)
    if gguf_file is not None:
        from thinkalike.models.gguf import gguf_config  # only GGUF files need this module

        config, _ = gguf_config(gguf_file)
        # The configuration has None where the file states nothing.
        entries = config.to_dict().items()
        return {name: value for name, value in entries if value is not None}
    path = enclosing_folder(place) / "config.json"
    config_json = checkpoint_json(path, LARGEST_CONFIG)
    count_tensors = partial(most_tensors_in, path.parent)
    check_counts(config_json, path.parent, count_tensors)
    return config_json


def _code_of_the_hub(section: object) -> str:
    """Return the first entry of a config.json that asks for code of the hub, as "NAME=VALUE".

    "" means that there is none. Such code is a kernel for attention, for example, as in
    "attn_implementation=ORG/KERNEL". An entry counts if its name contains "implementation" and its
    value a slash: implementations that transformers has itself, such as "sdpa", have none.

    Args:
        section: The config.json, or a value in it. Lists and dictionaries are searched with all
            that they contain; any other value has no entries.
    """
    if isinstance(section, list):
        for item in section:
            entry_inside = _code_of_the_hub(item)
            if entry_inside:
                return entry_inside
        return ""
    if not isinstance(section, dict):
        return ""
    for name, value in section.items():
        entry_inside = _code_of_the_hub(value)
        if entry_inside:
            return entry_inside
        asks_for_code = "implementation" in str(name) and "/" in str(value)
        if asks_for_code:
            return f"{name}={value}"
    return ""
