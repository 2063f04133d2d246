"""What cutting a model saves: a tail from block 9 of 12, and residuals without the unembedding, beside the full pass.

    python benchmarks/tail.py                   random GPT-NeoX models of pythia-160m's body on the CPU, two minutes
    python benchmarks/tail.py --device cuda

Every figure is a ratio of medians measured in turn in this one run; the floor is the ratio of multiply-adds. With a
small vocabulary the blocks decide; pythia's unembedding of 50,304 entries alone is 31 % of a full pass.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from measuring import options_of
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from thinkalike.config import ModelConfig
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.minis import train_tokenizer


def build(device: str, vocabulary: int) -> FrozenModel:
    """A random checkpoint on disk, loaded as any other."""
    shape = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    with tempfile.TemporaryDirectory() as folder:
        GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=vocabulary, **shape)).save_pretrained(folder)
        train_tokenizer(["a few words to train a tokenizer on"], 300).save_pretrained(folder)
        return load_model(ModelConfig(name="local", path=folder, device=device))


def in_turn(work: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of each, measured one after the other in every round."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):  # the first is a warm-up
        for name, call in work.items():
            start = time.perf_counter()
            call()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def main() -> None:
    options = options_of(__doc__, device="cpu", tokens=512, rounds=7)
    torch.set_grad_enabled(False)
    for vocabulary in (8192, 50304):
        measure(build(options.device, vocabulary), vocabulary, options)


def measure(model: FrozenModel, vocabulary: int, options: argparse.Namespace) -> None:
    """Print the ratios of one model."""
    tokens = torch.randint(300, (1, options.tokens), device=options.device)
    state = model.head(tokens, 8)
    block, unembedding = 12 * model.d_model**2, vocabulary * model.d_model
    full = 12 * block + unembedding
    work: dict[str, tuple[float, Callable[[], object]]] = {
        "full pass": (full, lambda: model.full(tokens)),
        "tail from block 9 of 12": (3 * block + unembedding, lambda: model.tail(state, 8)),
        "head to block 8": (9 * block, lambda: model.head(tokens, 8)),
        "residuals of all blocks": (12 * block, lambda: model.residuals(tokens, range(model.n_layers))),
        "blocks 9.. without unembedding": (3 * block, lambda: model.advance(state, 9, 12)),
    }
    medians = in_turn({name: call for name, (_, call) in work.items()}, options.rounds, options.device)
    print(f"vocabulary {vocabulary:,}, {options.tokens} tokens, float32")
    for name, value in medians.items():
        ratio, floor = value / medians["full pass"], work[name][0] / full
        print(f"  {name:32s} {value * 1000:8.1f} ms   {ratio:.2f} of a full pass (floor {floor:.2f})")


if __name__ == "__main__":
    main()
