"""The memory that training stitches takes: the part of a step that fits, and its peak, on random models of real shapes.

    python benchmarks/memory.py gpt2                GPT-2, layers=same at 16,384 tokens per step, within 8 GB: minutes
    python benchmarks/memory.py gpt2-all            GPT-2, 12 x 12 at 1,024 tokens per step, within 8 GB
    python benchmarks/memory.py pythia-410m         24 x 24 at 16,384 tokens per step, within 16 GB

A step of the first is 64 TFLOP, so one of its parts runs, forward and backward, after a step of the optimiser has made
gradients and momenta; with --whole all of them do, and the optimiser after them. The peak of the process is what the
system says (VmHWM); that of tensors is counted in a second pass over the same part.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from thinkalike.config import TrainerConfig
from thinkalike.errors import ResourceError
from thinkalike.memory import LiveBytes, bytes_in_use, readable
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.minis import train_tokenizer
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.stitching import Microbatch, StitchTraining, largest_microbatch, mean_losses

CONTEXT = 1024
GPT2 = GPT2Config()
PYTHIA = GPTNeoXConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                       vocab_size=50304)  # fmt: skip
CASES = {  # model, layers, tokens per step, memory
    "gpt2": ("gpt2", "same", 16384, "8GB"),
    "gpt2-all": ("gpt2", "all", 1024, "8GB"),
    "pythia-410m": ("gpt_neox", "all", 16384, "16GB"),
}


def build(family: str) -> FrozenModel:
    module = GPT2LMHeadModel(GPT2) if family == "gpt2" else GPTNeoXForCausalLM(PYTHIA)
    tokenizer = train_tokenizer(["a few words"], 300)
    return FrozenModel(module, FAMILIES[family], tokenizer, name=f"random-{family}", context=CONTEXT)


def high_water_mark() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--memory", help="in place of the case's own")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--whole", action="store_true", help="run all parts of the step: minutes to an hour")
    options = parser.parse_args()
    family, layers, tokens, memory = CASES[options.case]
    limits = TrainerConfig(memory=options.memory or memory, recompute=options.recompute)
    model = build(family)
    with model.recomputed(limits.recompute):
        measure(model, layers, tokens, limits, options.plan_only, options.whole)


def measure(model: FrozenModel, layers: str, tokens: int, limits: TrainerConfig, plan_only: bool, whole: bool) -> None:
    """Print the part of a step that fits, run it or the whole step, and print the peak."""
    depth = range(model.n_layers)
    pairs = list(itertools.product(depth, depth)) if layers == "all" else [(layer, layer) for layer in depth]
    rows = torch.randint(model.vocabulary, (tokens // CONTEXT, CONTEXT))
    module = StitchTraining(model, model, pairs, StitchConfig(tokens_per_step=tokens), limits=limits)
    weights = [list(phi.parameters()) for phi in module.stitches]
    tails = [model.n_layers - 1 - layer for _, layer in pairs]
    print(
        f"{model.name}, {len(pairs)} stitches, {tokens:,} tokens per step; "
        f"in use: {readable(bytes_in_use(rows.device))}"
    )
    start = time.perf_counter()
    try:
        size = largest_microbatch(limits, module.losses, weights, rows, tails, 1)
    except ResourceError as error:
        print(f"refused after {time.perf_counter() - start:.0f} s: {error}")
        return
    print(f"found after {time.perf_counter() - start:.0f} s: {size}")
    if plan_only:
        return
    (optimizer,) = [module.configure_optimizers()["optimizer"]]
    for weight in module.stitches.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()  # now there are momenta
    if whole:
        run_whole(module, weights, rows, size, optimizer)
        return
    largest = sorted(range(len(pairs)), key=lambda number: -tails[number])[: size.stitches]
    inner = [weight for number in largest for weight in weights[number]]

    def part() -> None:
        losses = module.losses(rows[: size.rows], largest)
        torch.autograd.grad(torch.stack([values.sum() for values in losses]).sum(), inner)

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    start = time.perf_counter()
    part()
    print(f"one part in {time.perf_counter() - start:.0f} s: high-water mark {readable(high_water_mark())}")
    with LiveBytes(rows.device) as live:
        part()
    print(f"tensors of the part: {readable(live.peak)}")


def run_whole(
    module: StitchTraining, weights: list, rows: torch.Tensor, size: Microbatch, optimizer: torch.optim.Optimizer
) -> None:
    """Run a step as training does, and print what it took."""
    optimizer.zero_grad()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    start = time.perf_counter()
    mean_losses(module.losses, weights, rows, size).sum().backward()
    optimizer.step()
    took = time.perf_counter() - start
    print(f"a whole step in {took:.0f} s: high-water mark {readable(high_water_mark())}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
