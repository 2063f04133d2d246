"""Which size of the recipe suits the models of a job and this machine: mini or paper."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from thinkalike.config.parts import ModelConfig
from thinkalike.files import is_folder

SMALL_CHECKPOINT = 2**28  # bytes of 64 million parameters in float32
BYTES_OF_FLOAT32 = 4


def chosen_scale(scale: str, models: Sequence[ModelConfig]) -> tuple[str, str]:
    """Return the scale of a recipe, mini or paper, and the reason, or "" if it needs no words.

    Args:
        scale: What is asked for: mini, paper or auto.
    """
    # A folder of states runs no model, on whatever machine.
    running = [model for model in models if not model.holds_states]
    if scale != "auto":
        return scale, ""
    if all(model.mini for model in running):
        return "mini", ""
    if all(model.mini or _is_small(model) for model in running):
        return "mini", "these models are small"

    import torch

    if torch.cuda.is_available():
        return "paper", "this machine has a GPU"
    return "mini", "this machine has no GPU"


def _is_small(model: ModelConfig) -> bool:
    """Return whether a model is known to be small, by its weights or the files in its folder."""
    weights = model.weights_in_memory
    if weights is not None:
        return BYTES_OF_FLOAT32 * weights < SMALL_CHECKPOINT
    return model.path is not None and _bytes_in(Path(model.path)) < SMALL_CHECKPOINT


def _bytes_in(folder: Path) -> int:
    """Return the bytes of the files of a folder; 0 for anything else."""
    if not is_folder(folder):
        return 0
    size = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            # A link may lead to itself, or to what nobody may see.
            with contextlib.suppress(OSError):
                if entry.is_file():
                    size += entry.stat().st_size
    return size
