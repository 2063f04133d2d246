"""Sizes of models that are known before any weights are read, and the operations of their passes."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from thinkalike.config import ModelConfig
from thinkalike.digests import remembered
from thinkalike.measures.losses import compare_outputs
from thinkalike.models.bounds import check_size
from thinkalike.models.families import LONGEST, family_in, pick_device
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.hooks import one_text_per_row
from thinkalike.models.labels import label
from thinkalike.models.module_facts import embedding_of, longest_row, text_config
from thinkalike.models.places import base_of, folder_of, known_shape, named_folder
from thinkalike.models.survey import without_hooks
from thinkalike.shards.index import read_index
from thinkalike.timing import remembered_seconds

log = logging.getLogger(__name__)

PUBLISHED = Path(__file__).parent / "published.yaml"
ROW = 8  # tokens of the shorter row whose operations are counted
TIMED_TOKENS = 1024  # of a pass that is timed; fewer do not fill the machine
TIMED_SECONDS = 0.4  # of processor time, after which enough blocks were timed
MOST_TIMED = (
    2.0**31
)  # bytes of weights that are made to time a pass; larger models are timed by a product
TIMED_WIDTH = 2048  # of that product, at most
TIMED_OUTPUTS = 32  # tokens whose logits are compared to time what a loss takes


@dataclass(frozen=True)
class Operations:
    """The operations of a model for each token, two for each product, as torch counts them."""

    blocks: tuple[float, ...]  # of each block, whatever the length of the row
    attention: tuple[
        float, ...
    ]  # of each block for each token of the row; kernels that skip later tokens need half
    output: float  # of everything outside the blocks, mostly the unembedding

    def forward(self, start: int, stop: int, context: int) -> float:
        """Return the operations for one token of blocks start..stop-1 in a row of `context` tokens."""
        return float(sum(self.blocks[start:stop]) + context * sum(self.attention[start:stop]))

    def full(self, context: int) -> float:
        """Return the operations of the full pass for one token."""
        return self.forward(0, len(self.blocks), context) + self.output


def operations(model: FrozenModel) -> Operations:
    return _counted(model.full, model.blocks, model.device)


@torch.no_grad()
def _counted(
    run: Callable[[Tensor], Any], blocks: Sequence[nn.Module], device: torch.device
) -> Operations:
    """Count the operations of two rows; what grows with the square of their length is attention."""
    seen: list[int] = []  # before and after each block
    with sdpa_kernel(SDPBackend.MATH), one_text_per_row(), contextlib.ExitStack() as hooks:
        counter = hooks.enter_context(FlopCounterMode(display=False))
        for hook in (
            hook
            for each in blocks
            for hook in (each.register_forward_pre_hook, each.register_forward_hook)
        ):
            hooks.enter_context(hook(lambda *_: seen.append(counter.get_total_flops())))
        run(torch.zeros(1, ROW, dtype=torch.long, device=device))
        whole = counter.get_total_flops()
        run(torch.zeros(1, 2 * ROW, dtype=torch.long, device=device))
    passed = [after - before for before, after in zip(seen[::2], seen[1::2], strict=True)]
    short, long = passed[: len(blocks)], passed[len(blocks) :]
    attention = [
        max(more / (2 * ROW) - less / ROW, 0.0) / ROW
        for less, more in zip(short, long, strict=True)
    ]
    fixed = [less / ROW - ROW * each for less, each in zip(short, attention, strict=True)]
    return Operations(tuple(fixed), tuple(attention), (whole - sum(short)) / ROW)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    name: str
    layers: int  # the number of blocks
    width: int  # of the residual stream
    vocabulary: int  # the rows of the embedding
    parameters: int  # all weights; shared weights count once
    bytes: float  # of these, in the dtype that the configuration asks for
    context: int  # the most tokens of a row that a job gives the model
    operations: Operations  # of its passes
    sizes: str = field(
        default="", repr=False, compare=False
    )  # from which it is built without weights; "": unknown

    @property
    def bytes_of_number(self) -> float:
        """The bytes of a weight, and of a number of a state; a folder of states has no weights."""
        return self.bytes / self.parameters if self.parameters else 4.0

    def passes(
        self, phase: str, tokens: int | float, row: int, times: int | float = 1, full: bool = True,
        is_shared: bool = False,
    ) -> Passes:  # fmt: skip
        """Return passes of this model; see `Passes`."""
        return Passes(phase, self, tokens, row, times, full, is_shared)


Shapes = Mapping[
    str, Shape
]  # by the part of the configuration: model, target, or the name of a member


@dataclass(frozen=True)
class Passes:
    """The passes of one model in one phase of a job: what `dry_run` counts.

    A step of training is three passes: forward, and the gradients of states and of weights. Through frozen weights it
    is two.
    """

    phase: str  # such as forward passes, training or report
    model: Shape
    tokens: int | float  # that it reads
    row: int  # tokens of a row of text
    times: int | float  # how often it reads them
    full: bool  # whether the passes go through the unembedding, too
    is_shared: bool  # whether jobs of one pass that read the same do it once

    @property
    def flops(self) -> float:
        """The operations, two for each product of a multiplication and an addition."""
        own = self.model.operations
        each = own.full(self.row) if self.full else own.forward(0, self.model.layers, self.row)
        return float(self.times * self.tokens * each)

    @property
    def seconds(self) -> float:
        """How long they take on this machine, at the speed of the blocks of this very model.

        What is made of logits is timed apart: with 262,144 entries it takes as long as the products.
        """
        if not self.flops:
            return 0.0
        of_outputs = (
            self.times * self.tokens * seconds_of_output(self.model.vocabulary)
            if self.full
            else 0.0
        )
        return self.flops * seconds_per_operation(self.model, self.row) + of_outputs


def seconds_per_operation(shape: Shape, row: int) -> float:
    """Return the time of an operation in the blocks of a model, found once for a machine.

    Blocks of the model's sizes run with weights that mean nothing, so that no weights are loaded.
    """
    device = pick_device("auto")
    row = min(row, shape.context)
    name = f"blocks of {shape.sizes or shape.width}, rows of {row}, {device}, {torch.get_num_threads()} threads"
    return remembered(
        f"{name}, torch {torch.__version__}", partial(_timed_operation, shape, row, device)
    )


def _timed_operation(shape: Shape, row: int, device: str) -> float:
    if shape.sizes:
        try:
            return _timed_blocks(shape, row, torch.device(device))
        except Exception as error:  # whatever architectures raise for weights that mean nothing
            log.debug("no time of %s: %s", shape, error)
    width = min(shape.width, TIMED_WIDTH)
    states = torch.ones(TIMED_TOKENS, width)
    weight = torch.ones(width, 4 * width)
    operations = 2.0 * TIMED_TOKENS * weight.numel()
    return remembered_seconds(f"product of width {width}", lambda: states @ weight) / operations


class _TimedEnough(Exception):
    """Ends a pass of which enough was timed."""


@torch.no_grad()
def _timed_blocks(shape: Shape, row: int, device: torch.device) -> float:
    """Return the time of an operation in a pass through the blocks, or through the first ones of a large model."""
    module, path, _ = _on_meta(json.loads(shape.sizes))
    _fill(module, device)
    blocks = list(module.get_submodule(path).children())
    tokens = torch.zeros(
        max(TIMED_TOKENS // row, 1), min(row, TIMED_TOKENS), dtype=torch.long, device=device
    )
    seconds = operations = 0.0
    began = 0.0

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            return time.perf_counter()
        return time.process_time() / torch.get_num_threads()

    def start(*_: Any) -> None:
        nonlocal began
        began = now()

    def stop(number: int, *_: Any) -> None:
        nonlocal seconds, operations
        seconds += now() - began
        operations += tokens.numel() * shape.operations.forward(
            number, number + 1, tokens.shape[1]
        )
        if seconds * torch.get_num_threads() > TIMED_SECONDS or number == len(blocks) - 1:
            raise _TimedEnough  # before the logits of a whole batch are made

    with one_text_per_row(), contextlib.ExitStack() as hooks:
        with contextlib.suppress(_TimedEnough):
            module(tokens[:1, :ROW])  # libraries are loaded the first time
        for number, block in enumerate(blocks):
            hooks.enter_context(block.register_forward_pre_hook(start))
            hooks.enter_context(block.register_forward_hook(partial(stop, number)))
        while seconds * torch.get_num_threads() < TIMED_SECONDS:
            with contextlib.suppress(_TimedEnough):
                module(tokens)
    return seconds / operations


def _fill(module: nn.Module, device: torch.device) -> None:
    """Give a module on the meta device numbers for weights; weights of one shape share their memory.

    Raises:
        ValueError: That would still take more than `MOST_TIMED` bytes.
    """
    kinds = {(weight.shape, weight.dtype) for weight in module.parameters()}
    size = sum(shape.numel() * dtype.itemsize for shape, dtype in kinds)
    if size > MOST_TIMED:
        raise ValueError(f"its weights of different shapes take {size:,} bytes")
    filled: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                key = weight.shape, weight.dtype
                if key not in filled:
                    filled[key] = torch.full(weight.shape, 0.01, dtype=weight.dtype, device=device)
                part._parameters[name] = nn.Parameter(filled[key], requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.zeros_like(buffer, device=device)


def seconds_of_output(vocabulary: int) -> float:
    """Return how long it takes to compare the logits of a token with others, beside the product that makes them."""
    logits = torch.ones(TIMED_OUTPUTS, max(vocabulary, 1))
    targets = torch.zeros(TIMED_OUTPUTS, dtype=torch.long)
    compare = partial(compare_outputs, logits[None], nn.Identity(), logits, targets)
    return remembered_seconds(f"outputs of {vocabulary} entries", compare) / (
        2 * TIMED_OUTPUTS
    )  # both are made


def shape_of(config: ModelConfig, name: str | None = None) -> Shape | None:
    """Return the shape of a model, called `name` or by its label, without its weights and without any download.

    The sizes are those of config.json in a folder or in the hub's cache, or those of the table of published sizes.
    None: no source here has them.
    """
    if config.holds_states:
        return _shape_of_states(config, name)
    if config.path:
        folder_of(config)
    read = base_of(config) or config
    folder = named_folder(read)
    if folder is None:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(str(read.hub_id), "config.json", revision=read.revision)
        sizes = known_shape(Path(cached).parent) if isinstance(cached, str) else {}
        return shape_from(config, sizes or _published(str(read.hub_id)), name)
    sizes = known_shape(folder)
    if "architecture" in sizes:
        with (
            contextlib.suppress(OSError, ValueError, KeyError),
            (folder / "model.safetensors").open("rb") as file,
        ):
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            sizes["architecture"] |= {"d_vocab": header["head.weight"]["shape"][0]}
    shape = shape_from(config, sizes, name)
    if shape is not None:
        check_size(shape.parameters, folder)
    return shape


def _shape_of_states(config: ModelConfig, name: str | None) -> Shape:
    """Return the shape of a folder of states, which runs no operations and holds no weights."""
    index = read_index(str(config.path))
    nothing = Operations((0.0,) * index.blocks, (0.0,) * index.blocks, 0.0)
    width = max(index.hooks.values())
    return Shape(name or label(config), index.blocks, width, 0, 0, 0.0, LONGEST, nothing)


def shape_from(
    config: ModelConfig, sizes: Mapping[str, Any], name: str | None = None
) -> Shape | None:
    """Return the shape of a model of these sizes, in the names of its config.json; None if it cannot be built."""
    known = _built(json.dumps(sizes, sort_keys=True))
    if known is None:
        return None
    layers, width, vocabulary, parameters, longest, operations = known
    size = float(parameters * getattr(torch, config.dtype).itemsize)
    context = min(longest or LONGEST, config.context or LONGEST)
    text = json.dumps(sizes, sort_keys=True)
    return Shape(
        name or label(config),
        layers,
        width,
        vocabulary,
        parameters,
        size,
        context,
        operations,
        text,
    )


@cache
def _published(name: str) -> dict[str, Any]:
    """Return the sizes of a published model; tuned ones and other seeds have those of their base."""
    base = re.sub(r"-(?:Base|Instruct)(?=$|-v)|(?<=feather_berts)_\d+$", "", name)
    base = re.sub(r"(?<=/pythia-)(\d+m)-seed\d$", r"\1-deduped", base)
    return yaml.safe_load(PUBLISHED.read_text())["models"].get(base, {})  # type: ignore[no-any-return]


@cache
def _built(sizes: str) -> tuple[int, int, int, int, int | None, Operations] | None:
    """Build a model of these sizes on the meta device, which holds no weights, and run it there.

    Its layers, width, vocabulary, parameters, longest row (None: any) and operations; None if it cannot be built.
    """
    shape = json.loads(sizes)
    try:
        module, path, row = _on_meta(shape)
    except Exception as error:  # whatever the libraries raise for sizes that they do not know
        log.debug("no shape of %s: %s", shape, error)
        return None
    blocks, own, embedding = (
        list(module.get_submodule(path).children()),
        text_config(module),
        embedding_of(module),
    )
    width = int(
        getattr(own, "hidden_size", None) or getattr(own, "d_model", None) or embedding.shape[1]
    )
    weights = [sum(weight.numel() for weight in part.parameters()) for part in (module, *blocks)]
    try:
        operations = _counted(module, blocks, torch.device("meta"))
    except (
        Exception
    ) as error:  # such as routing between experts, which reads values: two for each weight
        log.debug("no count of %s: %s", shape, error)
        each = tuple(2.0 * count for count in weights[1:])
        operations = Operations(each, (0.0,) * len(blocks), 2.0 * len(embedding) * width)
    return len(blocks), width, len(embedding), weights[0], row, operations


def _on_meta(sizes: Mapping[str, Any]) -> tuple[nn.Module, str, int | None]:
    """Return a module of these sizes without weights, the path to its blocks, and its longest row."""
    if "architecture" in sizes:
        from transformer_lens.model_bridge import TransformerBridge

        with torch.device("meta"):
            native: Any = TransformerBridge.boot_native(
                dict(sizes["architecture"]), device="meta", dtype=torch.float32
            )
        module = without_hooks(native.original_model)  # as a job reads it
        return module.eval(), "layers", native.original_model.cfg.n_ctx
    import transformers

    from thinkalike.models.blocks import blocks_of

    family, kind = family_in(sizes, "config.json"), str(sizes["model_type"])
    shape = transformers.AutoConfig.for_model(
        kind, **{key: each for key, each in sizes.items() if key != "model_type"}
    )
    with torch.device("meta"):
        reader = getattr(transformers, family.reading_class)
        build = (
            getattr(reader, "from_config", None) or reader._from_config
        )  # of an Auto class, or of a class itself
        module = build(shape)
    return module.eval(), family.blocks or blocks_of(module, kind), longest_row(module)
