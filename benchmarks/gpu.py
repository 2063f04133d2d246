"""What a GPU should be asked while one is at hand: tests, parity with the CPU, times beside floors, kernels of Mamba.

    python benchmarks/bench.py gpu --device cuda             all of it, some minutes, into RESULTS.md
    python benchmarks/gpu.py --only passes,kernels           some of it
    python benchmarks/gpu.py --device cpu --rows 1           a rehearsal with a small model

Parity is the largest difference between a float32 result here and on the CPU, as a share of the result's largest
value. Floors of measures are those of `similarity.py`, at the speeds of this device. The floor of a pass or a step is
its operations, which torch counts, at the speed of a large product of the same dtype in the same turns. Kernels are
those of the packages mamba-ssm and causal-conv1d, beside transformers' own code in a process that does not see them.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import similarity
import stitching
import torch
from measuring import Row, floor, in_turn, large_product, once, options_of, table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from thinkalike.config import ModelConfig
from thinkalike.measures import MLEM, rsa
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.minis import build_mini, train_tokenizer

HERE = Path(__file__).resolve().parent
VOCABULARY, N, LAYERS, BLOCKS = 50257, 1024, 12, (2, 5, 8, 11)
SMALL = {"n_embd": 64, "n_layer": 12, "n_head": 4}
PACKAGES = ("mamba-ssm", "causal-conv1d")
LEVELS = (12, 3, 6, 4)
SLOW = ("procrustes", "svcca", "soft_matching")  # of which each takes many seconds, and is timed once


def measured(device: str, rounds: int) -> str:
    """Return a table of each measure: how far float32 here is from the CPU, and its time of 13 x 13 layers."""
    layers = [each.to(device) for side in similarity.activations() for each in side]
    logits = [torch.randn(N, VOCABULARY, device=device) for _ in range(2)]
    stimuli = torch.stack([torch.randint(levels, (N,)) for levels in LEVELS], 1)
    every: dict[str, Measured] = {
        "rsa": Measured(rsa, layers),
        "mlem": Measured(lambda each: MLEM(alpha=1.0).fit(stimuli.to(each[0].device), each[0]).weights_, layers),
    }
    for kind, measure in similarity.every_measure().items():
        every[kind] = Measured(halves(measure.matrix), logits if kind in similarity.of_outputs() else layers)
    work = {name: lambda each=each: each.of(each.states) for name, each in every.items()}
    work |= similarity.primitives(device)
    slow = {name: once(work.pop(name), device) for name in SLOW}
    times = in_turn(work, rounds, device) | slow
    floors = similarity.floors(times, device)
    lines = ["| measure | differs from the CPU by | ms | floor, ms |", "|---|---|---|---|"]
    for name, own in every.items():
        few = [*own.states[:2], *own.states[-2:]] if len(own.states) > 2 else own.states
        here, there = own.of(few).double().cpu(), own.of([each.cpu() for each in few]).double()
        apart = float((here - there).abs().max() / there.abs().max())
        least = f"{1000 * floors[name]:.2g}" if name in floors else ""
        lines.append(f"| {name} | {apart:.0e} | {1000 * times[name].median:.3g} | {least} |")
    return "\n".join([f"13 x 13 layers, n = {N}, d = 768, float32 on {device}; parity on 2 x 2 of them\n", *lines, ""])


class Measured(NamedTuple):
    """A measure of the states of several layers."""

    of: Callable[[list[Tensor]], Tensor]
    states: list[Tensor]


def halves(matrix: Callable[[list[Tensor], list[Tensor]], Tensor]) -> Callable[[list[Tensor]], Tensor]:
    """Return a measure of two models' layers as one of both, one after the other."""
    return lambda states: matrix(states[: len(states) // 2], states[len(states) // 2 :])


def model(seed: int, device: str, dtype: torch.dtype) -> FrozenModel:
    """Return a random model of GPT-2's shape, small on a CPU."""
    shape = {"n_positions": 1024, **(SMALL if device == "cpu" else {})}
    module = build_mini(shape, VOCABULARY, seed, "gpt2").to(device, dtype)
    return FrozenModel(module, FAMILIES["gpt2"], train_tokenizer(["a few words"], 300), name="random", context=1024)


def passes(device: str, rows: int, rounds: int) -> str:
    """Return a table of what all states of a batch take, and a training step of four stitches, by dtype."""
    tokens = torch.randint(VOCABULARY, (rows, 1024 if device != "cpu" else 64), device=device)
    made = []
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        source, target = model(0, device, dtype), model(1, device, dtype)
        work = {
            "states of all layers": partial(states_of, source, tokens),
            "training step": stitching.ours(source, target, [(block, block) for block in BLOCKS], tokens),
        }
        times = in_turn({**work, "product": large_product(dtype, device)}, rounds, device)
        for what, call in work.items():
            with FlopCounterMode(display=False) as counter:
                call()
            least = floor(counter.get_total_flops(), times["product"], device=device)
            share = least.median / times[what].median
            made.append(Row(f"{what}, {name}", times[what], f"{share:.0%} of the speed of a product"))
    return table(f"GPT-2's shape, {tokens.numel()} tokens, {len(BLOCKS)} stitches", made)


@torch.no_grad()
def states_of(model: FrozenModel, tokens: Tensor) -> list[Tensor]:
    """Return the states of all layers."""
    return model.residuals(tokens, range(model.n_layers))


def jobs(device: str) -> str:
    """Return a table of the seconds of whole commands of the minis, each a process of its own."""
    commands = {
        "`train.py model=solu-3l-mini stitch=linear`": ["train.py", "model=solu-3l-mini", "stitch=linear"],
        "`analyze.py measure=cka`, two minis": ["analyze.py", "measure=cka", "models=[gelu-3l-mini,solu-3l-mini]"],
    }
    made = ["| command | s |", "|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for name, words in commands.items():
            start = time.perf_counter()
            own = [f"model.device={device}", f"store={folder}"]
            subprocess.run([sys.executable, *words, *own], cwd=HERE.parent, check=True, capture_output=True)
            made.append(f"| {name} | {time.perf_counter() - start:.1f} |")
    return "\n".join([f"Whole commands on {device}, start included\n", *made, ""])


def scanned(folder: str, device: str, hidden: bool, queue: multiprocessing.Queue) -> None:
    """Put the times of the states of a Mamba, and the last of them, in a process that may not see the kernels."""
    if hidden:
        sys.modules.update(dict.fromkeys(("mamba_ssm", "causal_conv1d")))
    own = load_model(ModelConfig(path=folder, device=device))
    tokens = torch.randint(300, (4, 1024), generator=torch.Generator().manual_seed(0)).to(device)
    call = partial(states_of, own, tokens)
    times = in_turn({"states": call}, 5, device)["states"]
    queue.put((times, call()[-1].float().cpu().numpy()))


def kernels(device: str) -> str:
    """Return a table of a random Mamba's states with its packages' kernels and without, or why there is none."""
    try:
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
        __import__("mamba_ssm"), __import__("causal_conv1d")
    except ImportError as missing:
        return f"Kernels of Mamba: not measured, {missing}\n"
    from transformers import MambaConfig, MambaForCausalLM

    context, found = multiprocessing.get_context("spawn"), {}
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        MambaForCausalLM(MambaConfig(num_hidden_layers=24, hidden_size=768)).save_pretrained(folder)
        train_tokenizer(["a few words"], 300).save_pretrained(folder)
        for hidden in (False, True):
            queue = context.Queue()
            process = context.Process(target=scanned, args=(folder, device, hidden, queue))
            process.start()
            found[hidden] = queue.get(timeout=200)
            process.join()
    (fast, states), (slow, expected) = found[False], found[True]
    apart = abs(states - expected).max() / abs(expected).max()
    rows = [Row("kernels", fast, f"differ by {apart:.0e}"), Row("transformers' own", slow)]
    return table(f"States of a random mamba-130m, 4096 tokens, float32; {versions}", rows)


def tests(device: str) -> str:
    """Return the last line of the tests that need a GPU, and print the others."""
    words = ["-m", "pytest", "-q", "-n4", "-m", "gpu", f"--device={device}", "tests"]
    done = subprocess.run([sys.executable, *words], cwd=HERE.parent, text=True, capture_output=True, check=False)
    print(done.stdout, done.stderr[-2000:], sep="\n", flush=True)
    return f"`pytest -m gpu --device {device} tests`: {done.stdout.strip().splitlines()[-1].strip('= ')}\n"


def parts(options: Namespace) -> dict[str, Callable[[], str]]:
    """Return this file's tables by name, each made when it is called."""
    device, rounds = options.device, 20 if options.device != "cpu" else 1
    return {
        "tests": lambda: tests(device),
        "measures": lambda: measured(device, 3 if device != "cpu" else 1),
        "passes": lambda: passes(device, options.rows, rounds),
        "jobs": lambda: jobs(device),
        "kernels": lambda: kernels(device),
    }


def main() -> None:
    options = options_of(__doc__, device="cuda", rows=8, only="")
    for name, part in parts(options).items():
        if not options.only or name in options.only.split(","):
            print(part(), flush=True)


if __name__ == "__main__":
    main()
