"""Adapters of PEFT, such as LoRA: the model that one changes, and the merging of both."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from thinkalike.config import HOW_IT_RUNS, ModelConfig, model_named
from thinkalike.errors import ConfigError, ModelError, check_extra, first_line, listed
from thinkalike.models.gguf_files import has_weights

log = logging.getLogger(__name__)

STATED = "adapter_config.json"
GIVE = "give model.base=FOLDER, ORG/NAME or an everyday name"


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
