"""Checkpoints that are not a folder of transformers: GGUF files of llama.cpp, and adapters of PEFT, such as LoRA."""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from thinkalike.config import HOW_IT_RUNS, ModelConfig, model_named
from thinkalike.errors import ConfigError, ModelError, check_extra, first_line, listed

log = logging.getLogger(__name__)

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # a folder that has these is read as transformers wrote it
SCALES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # of rotary positions
KEEPS_SCALES = ("gpt-oss",)  # the architectures whose scales transformers reads from a GGUF file
OWN = "take the model's own folder or repository"
STATED = "adapter_config.json"
GIVE = "give model.base=FOLDER, ORG/NAME or an everyday name"


def gguf_in(place: Path) -> Path | None:
    """Return the GGUF file that a path means: itself, or the only one of a folder without other weights.

    Raises:
        ModelError: the folder has several.
    """
    if is_gguf(str(place)):
        return place
    files = sorted(place.glob("*.gguf"))
    if not files or has_weights(place):
        return None
    if len(files) > 1:
        names = listed([file.name for file in files])
        raise ModelError(f"{place} has {len(files)} GGUF files ({names}); name one: model={files[0]}")
    return files[0]


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights as transformers writes them."""
    return any(next(folder.glob(pattern), None) for pattern in WEIGHTS)


def is_gguf(place: str) -> bool:
    """Return whether a place is a GGUF file, and not a folder or a repository."""
    return place.endswith(".gguf") and Path(place).is_file()


def located(place: str) -> dict[str, str]:
    """Return the arguments by which `from_pretrained` finds a checkpoint: a folder, a repository, or a GGUF file."""
    folder, name = os.path.split(place) if is_gguf(place) else (place, "")
    return {"pretrained_model_name_or_path": folder or ".", **({"gguf_file": name} if name else {})}


def gguf_shape(path: Path) -> dict[str, Any]:
    """Return what a config.json would say of the model in a GGUF file.

    Raises:
        ModelError: see `check_extra`; or transformers cannot read the file, or would read it wrongly.
    """
    return {key: value for key, value in _said(path)[0].to_dict().items() if value is not None}


def gguf_config(place: str) -> Any:
    """Return the configuration of transformers for the model in a GGUF file, which takes seconds to read anew."""
    return copy.deepcopy(_said(Path(place))[0])


def gguf_types(place: str) -> str:
    """Return how the tensors of a GGUF file are quantised, such as "Q4_1 x 210, F32 x 62"; "" for no GGUF file."""
    return _said(Path(place))[1] if is_gguf(place) else ""


def _said(path: Path) -> tuple[Any, str]:
    check_extra("gguf", ("gguf", "accelerate"), f"{path} is a GGUF file")
    return _read(str(path), path.stat().st_mtime_ns)


@cache
def _read(path: str, _changed: int) -> tuple[Any, str]:
    """Return the configuration and the types of a GGUF file; the second argument makes a changed file another one."""
    from gguf import GGUFReader
    from transformers import AutoConfig

    try:
        reader = GGUFReader(path)
        shape = AutoConfig.from_pretrained(**located(path))
    except (ValueError, LookupError, NotImplementedError, OSError) as error:
        raise ModelError(f"{path}: transformers cannot read this GGUF file ({error}); {OWN}") from error
    facts = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    if (parts := facts.get("split.count", 1)) > 1:
        raise ModelError(f"{path} is one of {parts} parts; join them: llama-gguf-split --merge FIRST WHOLE.gguf")
    scales = [tensor.name for tensor in reader.tensors if tensor.name in SCALES]
    architecture = facts["general.architecture"]
    if (scaling := facts.get(f"{architecture}.rope.scaling.type", "none")) != "none":
        scales.append(f"rope.scaling.type={scaling}")
    if scales and architecture not in KEEPS_SCALES:
        raise ModelError(
            f"{path} scales its rotary positions ({listed(scales)}), which transformers does not read from GGUF files, "
            f"so that all states would be wrong; {OWN}"
        )
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    named = ", ".join(f"{name} x {count}" for name, count in types.most_common())
    return shape, named


def is_adapter(folder: Path | None) -> bool:
    """Return whether a folder holds an adapter and no whole model."""
    return folder is not None and (folder / STATED).is_file() and not has_weights(folder)


def base_of(config: ModelConfig) -> ModelConfig | None:
    """Return the model that an adapter changes, run as the adapter's settings say; None for a whole model.

    It is `model.base`, or what adapter_config.json says.

    Raises:
        ConfigError: the model is none of an adapter, and has a base.
        ModelError: no base is said, or it is not here.
    """
    folder = Path(config.path or "", config.revision or "")
    if not config.path or not is_adapter(folder):
        if config.base:
            raise ConfigError(f"model.base={config.base}: {config.called} is no adapter; leave it out")
        return None
    said = config.base or stated_in(folder).get("base_model_name_or_path")
    if not said:
        raise ModelError(f"{folder / STATED} names no base_model_name_or_path; {GIVE}")
    try:
        place = str(Path(said).absolute()) if Path(said).exists() else str(said)
        base = model_named(place, {})
    except ConfigError:
        raise ModelError(f"model={config.called}: its base {said} is not known here; {GIVE}") from None
    if base.path and not Path(base.path).exists():
        raise ModelError(f"model={config.called}: its base {said} is not here; {GIVE}")
    return replace(base, **{key: getattr(config, key) for key in (*HOW_IT_RUNS, "bos", "side")})


def stated_in(folder: Path) -> dict[str, Any]:
    """Return the contents of adapter_config.json.

    Raises:
        ModelError: it is no JSON object.
    """
    try:
        return dict(json.loads((folder / STATED).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ModelError(f"{folder / STATED} is no JSON object ({error}); save the adapter again") from None


def merged(module: Any, folder: Path, name: str) -> Any:
    """Return a module with an adapter merged into its weights, in place; warn if the adapter changes none of them.

    Raises:
        ModelError: the adapter is of another model, or of a kind that cannot be merged.
    """
    check_extra("peft", ["peft"], f"{folder} is an adapter")
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what peft says of missing weights is checked here
        whole = _wrapped(module, folder, name)
        changes = any(isinstance(part, AuxiliaryTrainingWrapper) for part in whole.modules())
        for layer in [part for part in whole.modules() if isinstance(part, BaseTunerLayer)]:
            own: Any = layer.get_base_layer()
            before = own.weight.clone()
            layer.merge()
            changes |= not torch.equal(before, own.weight)
        if not changes:
            log.warning("%s: the adapter changes no weight, so that the model is its base", name)
        return whole.merge_and_unload()


def _wrapped(module: Any, folder: Path, name: str) -> Any:
    """Return peft's model of a base and an adapter whose weights all have a place."""
    from peft import PeftModel, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    try:
        whole = PeftModel.from_pretrained(module, str(folder))
        given = load_peft_weights(str(folder), device="cpu")
        found: Any = set_peft_model_state_dict(whole, given)
    except (RuntimeError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{name}: the adapter does not fit its base ({first_line(error)[:200]}); {GIVE}") from error
    if whole.active_peft_config.is_prompt_learning:
        raise ModelError(f"{name}: an adapter of the kind {whole.active_peft_config.peft_type.value} cannot be merged")
    own = get_peft_model_state_dict(whole, save_embedding_layers=False)
    if differing := {*found.unexpected_keys} | (own.keys() - given.keys()):
        raise ModelError(
            f"{name}: the adapter is of another model than its base, by {listed(sorted(differing))}; {GIVE}"
        )
    return whole
