"""CKA of 13 x 13 layers on one batch, n = 1024, d = 768: ours beside its floor and beside other packages.

    python benchmarks/cka.py                     one CPU thread, two minutes with all packages installed
    python benchmarks/cka.py --quick             without the packages that take seconds per batch
    python benchmarks/cka.py --device cuda
    pip install --no-deps pytorch-cka            the fastest of the packages

All of them get the same activations, in turn, in this one run. The floor is half of 26 Gram matrices, which are
symmetric, at the peak of a large product measured in the same turns. Packages that are not installed (pytorch-cka,
cka-pytorch, torch-cka, ckatorch) are left out, and but for the first they are timed once. Ours alone gives CKA within
both models too.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch
from measuring import Row, Times, device_here, floor, in_turn, large_product, once, table
from torch import Tensor, nn

from thinkalike import CKA, cka

LAYERS, N, D = 13, 1024, 768
Features = Sequence[Tensor]


class Replay(nn.Module):
    """A model whose layers answer with given activations, for packages that want models."""

    class Layer(nn.Module):
        def __init__(self, answer: Tensor):
            super().__init__()
            self.answer = answer

        def forward(self, x: Tensor) -> Tensor:
            return self.answer

    def __init__(self, features: Features):
        super().__init__()
        self.names = [f"layer{index}" for index in range(len(features))]
        for name, answer in zip(self.names, features, strict=True):
            self.add_module(name, self.Layer(answer))

    def forward(self, x: Tensor) -> Tensor:
        return [layer(x) for layer in self.children()][-1]


def pytorch_cka(xs: Features, ys: Features) -> Callable[[], Tensor]:
    from cka import cka_from_features

    return lambda: cka_from_features(xs, ys)


def cka_pytorch(xs: Features, ys: Features) -> Callable[[], Tensor]:
    from cka_pytorch import CKACalculator

    source, target = Replay(xs), Replay(ys)
    loader = [(torch.zeros(N, 1), 0)]

    def call() -> Tensor:
        names = (source.names, target.names)
        calculator = CKACalculator(source, target, *names, device=xs[0].device, verbose=False)
        return calculator.calculate_cka_matrix(loader, num_epochs=1)

    return call


def torch_cka(xs: Features, ys: Features) -> Callable[[], Tensor]:
    from torch.utils.data import DataLoader, TensorDataset
    from torch_cka import CKA as TorchCKA

    source, target = Replay(xs), Replay(ys)
    loader = DataLoader(TensorDataset(torch.zeros(N, 1)), batch_size=N)

    def call() -> Tensor:
        other = TorchCKA(source, target, "source", "target", source.names, target.names, device=str(xs[0].device))
        other.compare(loader, loader)
        return other.export()["CKA"]

    return call


def ckatorch(xs: Features, ys: Features) -> Callable[[], Tensor]:
    from ckatorch import cka_batch

    return lambda: torch.stack([torch.stack([cka_batch(x[None], y[None]) for y in ys]) for x in xs])


FAST = {"pytorch-cka": pytorch_cka}
SLOW = {"cka-pytorch": cka_pytorch, "torch-cka": torch_cka, "ckatorch": ckatorch}


def activations(device: str) -> tuple[list[Tensor], list[Tensor]]:
    """Layers that share a part, as those of models do."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(N, 64, generator=generator)
    layers = [
        shared @ torch.randn(64, D, generator=generator) / 8 + torch.randn(N, D, generator=generator)
        for _ in range(2 * LAYERS)
    ]
    layers = [layer.to(device) for layer in layers]
    return layers[:LAYERS], layers[LAYERS:]


def extra_memory(call: Callable[[], object], device: str) -> float:
    """MB that a call takes at most: the largest memory of this process so far, less that before the call."""
    if device != "cpu":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    before = psutil.Process().memory_info().rss
    call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 1e6


def installed(packages: dict[str, Callable], xs: Features, ys: Features) -> dict[str, Callable[[], Tensor]]:
    found = {}
    for name, build in packages.items():
        try:
            found[name] = build(xs, ys)
        except ImportError as missing:
            print(f"{name}: skipped, {missing}")
    return found


def whole_job(device: str, rounds: int) -> dict[str, Times]:
    """Seconds of a batch of two models of GPT-2's shape: their bare bodies, and all that measure=cka does."""
    from thinkalike.models.families import FAMILIES
    from thinkalike.models.frozen import FrozenModel
    from thinkalike.models.minis import build_mini, train_tokenizer
    from thinkalike.states.tokens import sites

    tokenizer = train_tokenizer(["a few words"], 300)
    modules = [build_mini({"n_positions": N}, 50257, seed, "gpt2").to(device) for seed in (0, 1)]
    models = [FrozenModel(module, FAMILIES["gpt2"], tokenizer, name="random", context=N) for module in modules]
    tokens, metric = torch.randint(50257, (1, N), device=device), CKA(12, 12).to(device)
    work = {
        "with CKA": lambda: metric.update(*(model.residuals(tokens, sites(model)) for model in models)),
        "the two bodies alone": lambda: [model.module.transformer(tokens) for model in models],
    }
    with torch.no_grad():
        return in_turn(work, rounds, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=device_here, default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="without slow packages and whole models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # here this file is the module cka, which is also the name of a package
    sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]
    xs, ys = activations(options.device)
    metric = CKA(LAYERS, LAYERS)
    metric.to(options.device).update([x[:8] for x in xs], [y[:8] for y in ys])  # libraries set up
    metric.reset()
    memory = extra_memory(lambda: metric.update(xs, ys), options.device)
    title = f"{LAYERS} x {LAYERS} layers, n = {N}, d = {D}, float32, {options.device}"
    print(table(title, compared(xs, ys, metric, memory, options)))
    if not options.quick:
        times = whole_job(options.device, max(options.rounds // 3, 1))
        print(table("A batch of two models of GPT-2's shape", [Row(name, each) for name, each in times.items()]))


def compared(xs: Features, ys: Features, metric: CKA, memory: float, options: argparse.Namespace) -> list[Row]:
    """Return the times of ours, its floor and the packages."""
    values = metric.compute().with_bias
    exact = float(cka(xs[0].double(), ys[-1].double()))
    fast = installed(FAST, xs, ys)
    work = {"ours": lambda: metric.update(xs, ys), "peak": large_product(device=options.device), **fast}
    times = in_turn(work, options.rounds, options.device)
    slow = {} if options.quick else installed(SLOW, xs, ys)
    times |= {name: once(call, options.device) for name, call in slow.items()}
    error = abs(float(values[0, -1]) - exact)
    rows = [Row("ours", times["ours"], f"{memory:.0f} MB; off float64 by {error:.1e}")]
    rows.append(Row("floor", floor(2 * LAYERS * N * N * D, times["peak"], device=options.device)))
    for name, call in {**fast, **slow}.items():
        rows.append(Row(name, times[name], f"differs by {float((call() - values).abs().max()):.1e}"))
    return rows


if __name__ == "__main__":
    main()
