"""The most operations per second that a GPU can do."""

from __future__ import annotations

import torch

from thinkalike.config import TrainerConfig

# Operations per second of dense products: bfloat16, TF32, float32 (NVIDIA's data sheets of each; the H200's are the
# H100's). The first entry whose words are all in a device's name is its own.
PEAKS = {
    "H100 PCIe": (756e12, 378e12, 51e12),
    "H100": (989e12, 494e12, 67e12),
    "H200": (989e12, 494e12, 67e12),
    "A100": (312e12, 156e12, 19.5e12),
    "L40S": (362e12, 183e12, 91.6e12),
}
PRECISIONS = ("bfloat16", "TF32", "float32")  # the order of the peaks


def precision_of(dtype: str, trainer: TrainerConfig) -> str:
    """Return the precision of the products of a job: bfloat16, TF32 or float32.

    Args:
        dtype: of its models.
    """
    if trainer.precision == "bf16-mixed" or trainer.matmul == "medium" or dtype in ("bfloat16", "float16"):
        return "bfloat16"
    return "TF32" if trainer.matmul == "high" else "float32"


def peak_of(device: torch.device, precision: str) -> float | None:
    """Return the most operations per second of a device, or None if nobody knows.

    Args:
        precision: of products: bfloat16, TF32 or float32.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    peaks = next((own for words, own in PEAKS.items() if all(word in name for word in words.split())), None)
    return peaks[PRECISIONS.index(precision)] if peaks else None
