"""Sizes of models that are known before any weights are read, and the operations of their passes."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from thinkalike.config import ModelConfig
from thinkalike.models.families import AUTO_CLASSES, FAMILIES, LONGEST, family_in
from thinkalike.models.formats import base_of
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.outline import label
from thinkalike.models.places import folder_of, known_shape, named_folder, stated_in
from thinkalike.models.surgery import one_text_per_row
from thinkalike.models.survey import text_config

log = logging.getLogger(__name__)

PUBLISHED = Path(__file__).parent / "published.yaml"
ROW = 8  # tokens of the shorter row whose operations are counted


@dataclass(frozen=True)
class Operations:
    """The operations of a model for each token, two for each product, as torch counts them.

    Attributes:
        blocks: of each block, whatever the length of the row.
        attention: of each block for each token of the row; kernels that skip later tokens need half of it.
        output: of everything outside the blocks, mostly the unembedding.
    """

    blocks: tuple[float, ...]
    attention: tuple[float, ...]
    output: float

    def forward(self, start: int, stop: int, context: int) -> float:
        """Return the operations for one token of blocks start..stop-1 in a row of `context` tokens."""
        return float(sum(self.blocks[start:stop]) + context * sum(self.attention[start:stop]))

    def full(self, context: int) -> float:
        """Return the operations of the full pass for one token."""
        return self.forward(0, len(self.blocks), context) + self.output


def operations(model: FrozenModel) -> Operations:
    """Return the operations of a loaded model."""
    return _operations_of(model.full, model.blocks, model.device)


def _operations_of(run: Callable[[Tensor], Any], blocks: Sequence[nn.Module], device: torch.device) -> Operations:
    """Count the operations of two rows; what grows with the square of their length is attention."""
    short, long = (
        _counted(run, blocks, torch.zeros(1, row, dtype=torch.long, device=device)) for row in (ROW, 2 * ROW)
    )
    attention = [max(more - less, 0.0) / ROW for less, more in zip(short[:-1], long[:-1], strict=True)]
    fixed = [less - ROW * each for less, each in zip(short[:-1], attention, strict=True)]
    return Operations(tuple(fixed), tuple(attention), short[-1])


@torch.no_grad()
def _counted(run: Callable[[Tensor], Any], blocks: Sequence[nn.Module], tokens: Tensor) -> list[float]:
    """Return the operations of one token in each block, and those of one token outside all blocks."""
    seen: list[int] = []
    with sdpa_kernel(SDPBackend.MATH), one_text_per_row(), FlopCounterMode(display=False) as counter:

        def look(*_: Any) -> None:
            seen.append(counter.get_total_flops())

        hooks = [hook(look) for each in blocks for hook in (each.register_forward_pre_hook, each.register_forward_hook)]
        try:
            run(tokens)
        finally:
            for hook in hooks:
                hook.remove()
    inside = [after - before for before, after in zip(seen[::2], seen[1::2], strict=True)]
    return [each / tokens.numel() for each in (*inside, counter.get_total_flops() - sum(inside))]


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        layers: the number of blocks.
        width: of the residual stream.
        vocabulary: the rows of the embedding.
        parameters: all weights; shared weights count once.
        bytes: of these, in the dtype that the configuration asks for.
        context: the most tokens of a row that a job gives the model.
        operations: of its passes.
    """

    name: str
    layers: int
    width: int
    vocabulary: int
    parameters: int
    bytes: float
    context: int
    operations: Operations


Shapes = Mapping[str, Shape]  # by the part of the configuration: model, target, or the name of a member


def both_of(shapes: Shapes) -> tuple[Shape, Shape]:
    """Return source and target; a model without a target is its own."""
    return shapes["model"], shapes.get("target", shapes["model"])


@dataclass(frozen=True)
class Passes:
    """The passes of one model in one phase of a job: what `dry_run` counts.

    Attributes:
        phase: such as forward passes, training or report.
        model: its shape.
        tokens: that it reads.
        row: tokens of a row of text.
        times: how often it reads them. A step of training a model is three passes: forward, and the gradients of states
            and of weights. Through frozen weights it is two.
        full: whether the passes go through the unembedding, too.
        is_shared: whether jobs of one pass that read the same do it once.
    """

    phase: str
    model: Shape
    tokens: int | float
    row: int
    times: int | float = 1
    full: bool = True
    is_shared: bool = False

    @property
    def flops(self) -> float:
        """The operations, two for each product of a multiplication and an addition."""
        own = self.model.operations
        each = own.full(self.row) if self.full else own.forward(0, self.model.layers, self.row)
        return float(self.times * self.tokens * each)


def shape_of(config: ModelConfig, name: str | None = None) -> Shape | None:
    """Return the shape of a model without its weights and without any download.

    The sizes are those that task=pretrain builds, those of config.json in a folder or in the hub's cache, or those of
    the table of published sizes. None: no source here has them.

    Args:
        name: what the shape is called, by default the label of the model.

    Raises:
        ModelError: the folder has no config.json.
    """
    if config.path:
        folder_of(config)
    sizes = _sizes(config)
    shape = _shape(config, sizes, getattr(torch, config.dtype).itemsize) if sizes else None
    return replace(shape, name=name or shape.name) if shape else None


def new_shape(config: ModelConfig, vocabulary: int) -> Shape | None:
    """Return the shape of the model that task=pretrain builds with this size of vocabulary."""
    family, own = FAMILIES.get(config.family), config.architecture
    sizes: dict[str, Any] = {"architecture": {**own, "d_vocab": vocabulary}}
    if family and family.reader != "native":
        sizes = {"model_type": family.in_config_json, "vocab_size": vocabulary, **own}
    return _shape(config, sizes, 4)


def _shape(config: ModelConfig, sizes: Mapping[str, Any], itemsize: int) -> Shape | None:
    known = _empty(json.dumps(sizes, sort_keys=True))
    if known is None:
        return None
    layers, width, vocabulary, parameters, longest, operations = known
    row = min(longest or LONGEST, config.context or LONGEST)
    return Shape(label(config), layers, width, vocabulary, parameters, float(parameters * itemsize), row, operations)


def _sizes(config: ModelConfig) -> dict[str, Any] | None:
    """Return the contents of config.json, or of the table of published ones."""
    config = base_of(config) or config
    folder = named_folder(config)
    if folder is None:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(str(config.hub_id), "config.json", revision=config.revision)
        known = known_shape(Path(cached)) if isinstance(cached, str) else None
        return known or _published(str(config.hub_id))
    sizes = known_shape(stated_in(folder))
    if "architecture" in sizes:
        vocabulary = _entries(folder / "model.safetensors")
        return {"architecture": {**sizes["architecture"], "d_vocab": vocabulary}} if vocabulary else None
    return sizes


@cache
def _published(name: str) -> dict[str, Any] | None:
    """Return the sizes of a published model; tuned ones and other seeds have those of their base."""
    known = yaml.safe_load(PUBLISHED.read_text())
    if said := re.fullmatch(r"NeelNanda/(?:GELU|SoLU)_(\d+)L(\d+)W_C4_Code", name):
        layers, width = map(int, said.groups())
        sizes = {"n_layers": layers, "d_model": width, "n_heads": width // 64, "d_mlp": 4 * width}
        return {"architecture": known["legacy"] | sizes}
    base = re.sub(r"-(?:Base|Instruct)(?=$|-v)|(?<=feather_berts)_\d+$", "", name)
    base = re.sub(r"(?<=/pythia-)(\d+m)-seed\d$", r"\1-deduped", base)
    return known["models"].get(base)  # type: ignore[no-any-return]


def _entries(path: Path) -> int | None:
    """Return the rows of the unembedding that the header of a safetensors file states."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return int(header["head.weight"]["shape"][0])
    except (OSError, ValueError, KeyError):
        return None


@cache
def _empty(sizes: str) -> tuple[int, int, int, int, int | None, Operations] | None:
    """Build a model of these sizes on the meta device, which holds no weights, and run it there.

    Returns:
        Layers, width, vocabulary, parameters, longest row (None: any) and operations; None if it cannot be built.
    """
    shape = json.loads(sizes)
    try:
        empty = _native(shape["architecture"]) if "architecture" in shape else _of_transformers(shape)
        module, blocks, row = empty
        embedding = next(part.weight for part in module.modules() if isinstance(part, nn.Embedding))
    except Exception as error:  # whatever the libraries raise for sizes that they do not know
        log.debug("no shape of %s: %s", shape, error)
        return None
    own = text_config(module)
    width = getattr(own, "hidden_size", None) or getattr(own, "d_model", None) or embedding.shape[1]
    try:
        operations = _operations_of(module, blocks, torch.device("meta"))
    except Exception as error:  # such as routing between experts, which reads values
        log.debug("no count of %s: %s", shape, error)
        operations = _of_weights(blocks, len(embedding) * int(width))
    return len(blocks), int(width), len(embedding), _weights(module), row, operations


def _of_weights(blocks: Sequence[nn.Module], unembedding: int) -> Operations:
    """Return two operations for each weight, for models whose pass cannot be counted without weights."""
    return Operations(tuple(2.0 * _weights(block) for block in blocks), (0.0,) * len(blocks), 2.0 * unembedding)


def _weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


Empty = tuple[nn.Module, list[nn.Module], int | None]  # the module, its blocks, and its longest row, if limited


def _native(sizes: Mapping[str, Any]) -> Empty:
    from transformer_lens.model_bridge import TransformerBridge

    with torch.device("meta"):
        module = TransformerBridge.boot_native(dict(sizes), device="meta", dtype=torch.float32).original_model
    return module, list(module.get_submodule("layers").children()), module.cfg.n_ctx


def _of_transformers(sizes: Mapping[str, Any]) -> Empty:
    import transformers

    from thinkalike.models.readers import blocks_of, longest_row

    family, kind = family_in(sizes, "config.json"), str(sizes["model_type"])
    shape = transformers.AutoConfig.for_model(kind, **{key: each for key, each in sizes.items() if key != "model_type"})
    with torch.device("meta"):
        module = getattr(transformers, AUTO_CLASSES[family.predicts]).from_config(shape)
    blocks = module.get_submodule(family.blocks or blocks_of(module, kind)).children()
    return module.eval(), list(blocks), longest_row(module)
