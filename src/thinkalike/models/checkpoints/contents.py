"""What the files of a checkpoint say of why it cannot be read: no weights, weights of another kind, a missing shard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from thinkalike.config import ModelConfig
from thinkalike.errors import listed
from thinkalike.hub import resolved

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
SINGLE = ("model.safetensors", "pytorch_model.bin")  # as transformers looks for them, each before its shards
NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")  # what trainers leave beside them
OTHERS = {".gguf": "GGUF", ".h5": "TensorFlow", ".msgpack": "Flax", ".onnx": "ONNX"}


def fault_of(config: ModelConfig) -> str:
    """Return what is wrong with the files of a checkpoint, and what to do; "" where that cannot be said, or nothing is.

    It is asked when loading has failed.
    """
    if config.mini:
        return ""
    try:
        files = _files(config)
        return _no_weights(files) or _missing_shards(config, files)
    except Exception:  # a hub that does not answer, a damaged index: what loading said is all that there is to say
        return ""


def _files(config: ModelConfig) -> Sequence[str]:
    if not config.path:
        return resolved("model", str(config.hub_id), config.revision).files or [SINGLE[0]]  # not known: as it should be
    folder = Path(config.path)
    there = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    return there if folder.is_dir() else [SINGLE[0]]


def _no_weights(files: Sequence[str]) -> str:
    names = [Path(name) for name in files]
    weights = [name for name in names if name.suffix in WEIGHTS and not name.name.startswith(NO_WEIGHTS)]
    if weights and all(name.name.startswith("adapter_") for name in weights):
        return "it is an adapter alone; give its base model with the adapter merged into it (PEFT's merge_and_unload)"
    if weights:
        return ""
    if others := sorted({OTHERS[name.suffix] for name in names if name.suffix in OTHERS}):
        return f"it has {' and '.join(others)} weights only, which are not read; give a checkpoint with {SINGLE[0]}"
    if all(name.name in (".gitattributes", "README.md", "LICENSE") for name in names):
        return f"it is empty; give a checkpoint with config.json and {SINGLE[0]}"
    return f"it has no weights: {SINGLE[0]}, {SINGLE[1]}, or shards of them; give a whole checkpoint"


def _missing_shards(config: ModelConfig, files: Sequence[str]) -> str:
    """Return which of the shards are not there that an index names, if it is the one that would be read."""
    for single in SINGLE:
        if single in files:
            return ""
        if (index := f"{single}.index.json") in files:
            shards = sorted(set(json.loads(_fetched(config, index).read_text())["weight_map"].values()))
            missing = [shard for shard in shards if shard not in files]
            return f"of the {len(shards)} shards in {index} it lacks {listed(missing)}; get them" if missing else ""
    return ""


def _fetched(config: ModelConfig, name: str) -> Path:
    import huggingface_hub

    if config.path:
        return Path(config.path) / name
    return Path(huggingface_hub.hf_hub_download(str(config.hub_id), name, revision=config.revision))
