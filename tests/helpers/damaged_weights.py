"""Checkpoints whose weights were changed."""

import torch
from safetensors.torch import load_file, save_file


def rewrite(folder, change):
    """Change the weights of a checkpoint."""
    path = folder / "model.safetensors"
    weights = {name: weight.contiguous() for name, weight in change(load_file(path)).items()}
    save_file(weights, path, metadata={"format": "pt"})


def without_a_block(weights, block, _):
    return {name: weight for name, weight in weights.items() if block not in name}


def with_a_block_too_many(weights, block, _):
    return weights | {n.replace(block, block.replace("1", "4")): w.clone() for n, w in weights.items()}


DAMAGES = {  # with what is said, by PyTorch of a mini
    "missing": (without_a_block, "(missing: ", "Missing key(s)"),
    "a block too many": (with_a_block_too_many, "(not expected: ", "Unexpected key(s)"),
    "another shape": (lambda w, _, name: w | {name: w[name][:-1]}, "(of another shape: ", "size mismatch"),
    "a further weight": (lambda w, *_: w | {"extra.weight": torch.ones(2)}, "(not expected: extra", "extra.weight"),
}
