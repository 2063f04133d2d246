"""What cutting a model saves: a tail from block 9 of 12, and residuals without the unembedding, beside the full pass.

    python benchmarks/tail.py                   a random GPT-NeoX of pythia-160m's shape on the CPU, about a minute
    python benchmarks/tail.py --device cuda

Every figure is a ratio of medians measured in turn in this one run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from thinkalike.config import ModelConfig
from thinkalike.models import FrozenModel, load_model, train_tokenizer


def build(device: str) -> FrozenModel:
    """A random checkpoint on disk, loaded as any other."""
    shape = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    with tempfile.TemporaryDirectory() as folder:
        GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=50304, **shape)).save_pretrained(folder)
        train_tokenizer(["a few words to train a tokenizer on"], 300).save_pretrained(folder)
        return load_model(ModelConfig(name="local", path=folder, device=device))


def in_turn(work: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of each, measured one after the other in every round."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):  # the first is a warm-up
        for name, call in work.items():
            start = time.perf_counter()
            with torch.no_grad():
                call()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build(options.device)
    tokens = torch.randint(300, (1, options.tokens), device=options.device)
    state = model.head(tokens, 8)
    last = model.n_layers - 1
    work: dict[str, Callable[[], object]] = {
        "full pass": lambda: model.full(tokens),
        "tail from block 9 of 12": lambda: model.tail(state, 8),
        "head to block 8": lambda: model.head(tokens, 8),
        "residuals of all blocks": lambda: model.residuals(tokens, range(model.n_layers)),
        "blocks 9.. without unembedding": lambda: model.advance(state, 9, last + 1),
    }
    medians = in_turn(work, options.rounds, options.device)
    for name, value in medians.items():
        print(f"{name:32s} {value * 1000:8.1f} ms   {value / medians['full pass']:.2f} of a full pass")


if __name__ == "__main__":
    main()
