"""What training stitches costs: all layers together, one run per layer, and one run per layer through whole models.

    python benchmarks/stitching.py                  random 4-layer models of gelu-4l's shape on one CPU thread, minutes
    python benchmarks/stitching.py --device cuda

Times are medians of steps taken in turn in this one run; the floor counts multiply-adds. Model FLOP utilisation is the
share that operations of a step per second are of those of one large float32 product, on this device and in this run.
Memory is that of the loss of 2^14 tokens and its gradient, through an unembedding of 48,262 entries: in chunks, and
with all logits at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import large_product, options_of, speed
from tail import in_turn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from thinkalike import StitchModule
from thinkalike.measures import token_loss
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.minis import build_mini, train_tokenizer
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.stitching import StitchTraining

LAYERS, WIDTH, VOCABULARY = 4, 512, 48262
SHAPE = {"n_layers": LAYERS, "d_model": WIDTH, "n_heads": 8, "d_head": 64, "d_mlp": 2048, "n_ctx": 1024}
PAIRS = [(layer, layer) for layer in range(LAYERS)]


def build(seed: int, device: str) -> FrozenModel:
    module = build_mini({**SHAPE, "act_fn": "gelu", "normalization_type": "LN"}, VOCABULARY, seed).to(device)
    tokenizer = train_tokenizer(["a few words"], 300)
    return FrozenModel(module, FAMILIES["native"], tokenizer, name=f"random-{seed}", context=1024)


def ours(source: FrozenModel, target: FrozenModel, pairs: list, tokens: torch.Tensor) -> Callable[[], object]:
    """A training step of one run that has all these stitches."""
    config = StitchConfig(tokens_per_step=tokens.numel())
    module = StitchTraining(source, target, pairs, config).to(tokens.device)
    optimizer = torch.optim.SGD(module.stitches.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.stack([losses.mean() for losses in module.losses(tokens)]).sum().backward()
        optimizer.step()

    return step


def hooked(source: FrozenModel, target: FrozenModel, layer: int, tokens: torch.Tensor) -> Callable[[], object]:
    """A training step that runs both models whole and puts φ's output in by a hook."""
    phi, found = StitchModule("linear", WIDTH, WIDTH).to(tokens.device), {}
    optimizer = torch.optim.SGD(phi.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def seen(module: object, args: object, output: tuple[torch.Tensor]) -> None:
        (found["state"],) = output

    def swapped(module: object, args: object, output: object) -> tuple[torch.Tensor]:
        return (phi(found["state"]),)

    def step() -> None:
        optimizer.zero_grad()
        with contextlib.ExitStack() as hooks:
            for model, hook in ((source, seen), (target, swapped)):
                hooks.callback(model.module.layers[layer].register_forward_hook(hook).remove)
            with torch.no_grad():
                source.module(tokens)
            logits = target.module(tokens)[:, :-1]
        cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def multiply_adds() -> dict[str, float]:
    """Per token and step: a frozen weight costs a product forward and one backward; a source, the first alone."""
    block, unembedding = 12 * WIDTH**2, VOCABULARY * WIDTH
    tails = sum(LAYERS - 1 - depth for _, depth in PAIRS) * block
    back = tails + LAYERS * unembedding
    heads = sum(layer + 1 for layer, _ in PAIRS) * block
    whole = LAYERS * (LAYERS * block + unembedding)
    joint = LAYERS * block + tails + LAYERS * unembedding + back
    return {"together": joint, "apart": joint - LAYERS * block + heads, "whole": 2 * whole + back}


def utilisation(source: FrozenModel, target: FrozenModel, tokens: torch.Tensor, medians: dict[str, float]) -> float:
    """Return operations of the step with all stitches / its seconds / those per second of a large product."""
    with FlopCounterMode(display=False) as counter:
        ours(source, target, PAIRS, tokens)()
    taken = counter.get_total_flops()
    return taken / medians["together"] / speed(medians["product"], tokens.device.type)


def peak_of_loss(chunked: bool, device: str, queue: multiprocessing.Queue) -> None:
    """Bytes that the loss of 2^14 tokens and its gradient need beyond what was there before."""
    torch.set_num_threads(1)
    head = torch.nn.Linear(WIDTH, VOCABULARY).requires_grad_(False).to(device)
    states = torch.randn(2**14, WIDTH, device=device, requires_grad=True)
    targets = torch.randint(VOCABULARY, (2**14,), device=device)
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far, which began as the parent's
    before = _peak(device)
    (token_loss(states, head, targets) if chunked else cross_entropy(head(states), targets)).mean().backward()
    queue.put(_peak(device) - before)


def _peak(device: str) -> int:
    if device == "cpu":
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return torch.cuda.max_memory_allocated()


def main() -> None:
    options = options_of(__doc__, device="cpu", rows=2, context=512, rounds=3)
    source, target = build(0, options.device), build(1, options.device)
    tokens = torch.randint(VOCABULARY, (options.rows, options.context), device=options.device)
    apart = [ours(source, target, [pair], tokens) for pair in PAIRS]
    whole = [hooked(source, target, layer, tokens) for layer, _ in PAIRS]
    work: dict[str, Callable[[], object]] = {
        "together": ours(source, target, PAIRS, tokens),
        "apart": lambda: [step() for step in apart],
        "whole": lambda: [step() for step in whole],
        "product": large_product(device=options.device),
    }
    medians, counts = in_turn(work, options.rounds, options.device), multiply_adds()
    names = {"together": "all together", "apart": "one run each", "whole": "one run each, both models whole"}
    print(f"{LAYERS} stitches, {tokens.numel()} tokens per step, d {WIDTH}, {LAYERS} layers, {VOCABULARY:,} entries")
    for name, label in names.items():
        ratio, floor = medians[name] / medians["together"], counts[name] / counts["together"]
        print(f"  {label:34s}{medians[name]:8.2f} s   {ratio:.2f} of all together (multiply-adds {floor:.2f})")
    share = utilisation(source, target, tokens, medians)
    print(f"  all together, model FLOP utilisation: {share:.0%} of the speed of a large product")
    context = multiprocessing.get_context("spawn")
    for label, chunked in (("in chunks", True), ("all logits", False)):
        queue = context.Queue()
        process = context.Process(target=peak_of_loss, args=(chunked, options.device, queue))
        process.start()
        print(f"  loss of {2**14:,} tokens, {label:12s}{queue.get() / 1e9:8.2f} GB")
        process.join()


if __name__ == "__main__":
    main()
