"""How long passes take on this machine, found once for a machine without loading weights."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from thinkalike.measures.losses import compare_outputs
from thinkalike.models.families import pick_device
from thinkalike.models.hooks import one_text_per_row
from thinkalike.models.meta_models import MetaModel, meta_model
from thinkalike.models.operations import TOKENS_OF_SHORT_ROW, Operations
from thinkalike.timing import remembered_seconds, timed_once

log = logging.getLogger(__name__)

# The tokens of a pass that is timed; fewer do not fill the machine.
TIMED_TOKENS = 1024

# The seconds of processor time, of all threads together, after which enough blocks were timed.
TIMED_SECONDS = 0.4

# The most bytes of weights that are made to time a pass; larger models are timed by a product.
MOST_TIMED = 2.0**31

# The largest width of that product.
TIMED_WIDTH = 2048

# The tokens whose logits are compared to time what a loss takes.
TIMED_OUTPUTS = 32

# What weights are filled with, as their values do not matter for the time.
FILLED_WITH = 0.01


@runtime_checkable
class TimedShape(Protocol):
    """What timing needs to know of a model; see `Shape`."""

    @property
    def width(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def operations(self) -> Operations: ...

    @property
    def config_json(self) -> str: ...


def seconds_per_operation(shape: TimedShape, row_length: int) -> float:
    """Return the seconds that one floating-point operation takes in the blocks of a model.

    Blocks of the model's sizes are timed on this machine with constant weights, so that no weights
    are loaded. The time is stored on disk, so that it is measured only once for a machine.

    Args:
        shape: The sizes of the model.
        row_length: The tokens of a row; at most the model's context is used.
    """
    device = pick_device("auto")
    row_length = min(row_length, shape.context)
    threads = torch.get_num_threads()
    sizes = shape.config_json or shape.width
    name = f"blocks of {sizes}, rows of {row_length}, {device}, {threads} threads"
    measure = partial(_measured_seconds_per_operation, shape, row_length, device)
    return timed_once(f"{name}, torch {torch.__version__}", measure)


def _measured_seconds_per_operation(shape: TimedShape, row_length: int, device: str) -> float:
    """Return the seconds that one floating-point operation takes, measured now.

    It is measured in blocks of the model's sizes. If these are not known, or such blocks cannot be
    made or run, a matrix product as in an MLP of the model's width is timed instead, on the CPU.

    Args:
        shape: The sizes of the model.
        row_length: The tokens of a row.
        device: Where the blocks run.
    """
    if shape.config_json:
        try:
            return _seconds_per_operation_of_blocks(shape, row_length, torch.device(device))
        except Exception as error:  # whatever an architecture raises for constant weights
            log.debug("no time of %s: %s", shape, error)
    width = min(shape.width, TIMED_WIDTH)
    states = torch.ones(TIMED_TOKENS, width)
    weight = torch.ones(width, 4 * width)
    operations = 2.0 * TIMED_TOKENS * weight.numel()  # a multiplication and an addition each
    seconds = remembered_seconds(f"product of width {width}", lambda: states @ weight)
    return seconds / operations


def _seconds_per_operation_of_blocks(
    shape: TimedShape, row_length: int, device: torch.device
) -> float:
    """Return the mean seconds of a floating-point operation in passes through a model's blocks.

    The blocks have the sizes of the model, and constant weights.

    Args:
        shape: The sizes of the model.
        row_length: The tokens of a row.
        device: Where the blocks run.

    Raises:
        Exception: Whatever the libraries raise if the blocks cannot be made or run.
    """
    config_json = json.loads(shape.config_json)
    model = meta_model(config_json)
    _fill_weights(model.module, device)
    return _BlockTimer(model, shape, row_length, device).seconds_per_operation()


class _TimedEnough(Exception):
    """Ends a pass once blocks were timed for long enough."""


class _BlockTimer:
    """Times passes through the blocks of a model, or through the first ones of a large model.

    The seconds that the blocks take are divided by the number of their floating-point operations.

    Args:
        model: The model, with constant weights.
        shape: Its sizes.
        row_length: The tokens of a row.
        device: The device of the weights.
    """

    def __init__(self, model: MetaModel, shape: TimedShape, row_length: int, device: torch.device):
        """Make the batch that is timed: about TIMED_TOKENS tokens in rows of `row_length`."""
        self.module = model.module
        self.blocks = model.blocks
        self.shape = shape
        self.device = device
        n_rows = max(TIMED_TOKENS // row_length, 1)
        timed_length = min(row_length, TIMED_TOKENS)
        self.tokens = torch.zeros(n_rows, timed_length, dtype=torch.long, device=device)
        # Sums over the blocks that were timed, of the time they took and of their operations.
        self.seconds = 0.0
        self.operations = 0.0
        self._began = 0.0  # when the block that runs now began, in seconds of a clock

    @torch.no_grad()
    def seconds_per_operation(self) -> float:
        """Return the mean seconds of one floating-point operation in the model's blocks.

        Passes are repeated until blocks have taken `TIMED_SECONDS` of processor time. Hooks before
        and after each block sum up its seconds and operations. After the last block, or after any
        block once the time is up, the hook `_stop` ends the pass with the exception
        `_TimedEnough`. Passes are made as in a job, see `one_text_per_row`.
        """
        with one_text_per_row(), contextlib.ExitStack() as hooks:
            # The first pass is not timed, as it also loads libraries. A short row does for it.
            self.module(self.tokens[:1, :TOKENS_OF_SHORT_ROW])
            for number, block in enumerate(self.blocks):
                hooks.enter_context(block.register_forward_pre_hook(self._start))
                hooks.enter_context(block.register_forward_hook(partial(self._stop, number)))
            while self._processor_seconds() < TIMED_SECONDS:
                with contextlib.suppress(_TimedEnough):
                    self.module(self.tokens)
        return self.seconds / self.operations

    def _start(self, *_: object) -> None:
        """Note the time, as a hook before a block."""
        self._began = self._now()

    def _stop(self, number: int, *_: object) -> None:
        """Add the time and the operations of the block with this number, as a hook after it.

        Raises:
            _TimedEnough: It was the last block, or enough was timed. The pass ends there, so that
                no logits of a whole batch take memory.
        """
        self.seconds += self._now() - self._began
        row_length = self.tokens.shape[1]
        operations_per_token = self.shape.operations.forward(number, number + 1, row_length)
        self.operations += self.tokens.numel() * operations_per_token
        if self._processor_seconds() > TIMED_SECONDS or number == len(self.blocks) - 1:
            raise _TimedEnough

    def _now(self) -> float:
        """Return a time in seconds, of which only differences mean something.

        On a GPU it is wall time. Otherwise it is the processor time of all threads divided by
        their number, so that other programs on the machine do not count.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # wait until all kernels have run
            return time.perf_counter()
        return time.process_time() / torch.get_num_threads()

    def _processor_seconds(self) -> float:
        """Return the processor time that blocks have taken, of all threads together."""
        return self.seconds * torch.get_num_threads()


def _fill_weights(module: nn.Module, device: torch.device) -> None:
    """Give a module on the meta device constant weights, and zeros for buffers, in place.

    Its passes can then be timed. Weights with the same shape and dtype share their memory.

    Raises:
        ValueError: They would still take more than `MOST_TIMED` bytes.
    """
    shapes_and_dtypes = {(weight.shape, weight.dtype) for weight in module.parameters()}
    size = sum(shape.numel() * dtype.itemsize for shape, dtype in shapes_and_dtypes)
    if size > MOST_TIMED:
        raise ValueError(f"its weights of different shapes take {size:,} bytes")
    filled: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
    for submodule in module.modules():
        for name, weight in submodule._parameters.items():
            if weight is None:
                continue
            key = (weight.shape, weight.dtype)
            if key not in filled:
                filled[key] = torch.full(
                    weight.shape, FILLED_WITH, dtype=weight.dtype, device=device
                )
            submodule._parameters[name] = nn.Parameter(filled[key], requires_grad=False)
        for name, buffer in submodule._buffers.items():
            if buffer is not None:
                submodule._buffers[name] = torch.zeros_like(buffer, device=device)


def seconds_of_output(vocabulary: int) -> float:
    """Return the seconds that a comparison of two models' logits takes per token and model.

    It is measured on this machine. The product with the unembedding, which makes the logits, is
    not included.

    Args:
        vocabulary: The number of logits of a token.
    """
    logits = torch.ones(TIMED_OUTPUTS, max(vocabulary, 1))  # (t, v)
    targets = torch.zeros(TIMED_OUTPUTS, dtype=torch.long)
    # The same logits serve as those of both models. The function takes states and maps them to
    # logits; here the states are the logits already.
    states = logits[None]  # (1, t, v): of one model
    compare = partial(compare_outputs, states, nn.Identity(), logits, targets)
    seconds = remembered_seconds(f"outputs of {vocabulary} entries", compare)
    n_models = 2
    return seconds / (n_models * TIMED_OUTPUTS)
