"""The hidden units of a model's blocks, as their weights are stored, one block at a time.

A unit is a neuron of an MLP, of one expert of a mixture, or a channel of a Mamba mixer. It reads
the residual stream by one vector and writes to it by another one. Weights of an ordinary folder
are read from its files when they are asked for, so that two blocks at a time are in memory; those
of GPTQ, AWQ and bitsandbytes are decoded. Adapters, GGUF files, models of other quantisations and
models in memory are loaded as for any other job.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor, nn

from thinkalike.config import ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.errors import ModelError, natural_order
from thinkalike.models.access import checkpoint_location
from thinkalike.models.checkpoints import LIGHTNING, base_of, is_gguf, named_folder, weight_map
from thinkalike.models.config_json import read_config_json
from thinkalike.models.families import family_in, stated_quantization
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.formats import WEIGHT_FILES
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.heads import Heads, exchangeable_heads, heads_of_weight, text_section
from thinkalike.models.load import load_model
from thinkalike.models.loading_errors import explaining_loading_errors
from thinkalike.models.minis import mini_tokenizer
from thinkalike.models.module_facts import config_of_text_model, embedding_of, tensors_of
from thinkalike.models.packed_weights import DecodedWeights, packed_settings
from thinkalike.models.parts import is_wrapper
from thinkalike.models.stored_weights import (
    Weights,
    check_dtypes,
    check_weight_files_agree,
    tensors_in_file,
)
from thinkalike.models.tokenizer_reading import read_tokenizer

# The name of a weight in a block: the stack of blocks, the number of the block, and the rest.
IN_BLOCK = re.compile(r"^(?P<stack>.*?)\.?(?P<block>\d+)\.(?P<inside>.+)$")

# Weights of blocks that read images or sound, and of adapters.
OF_OTHER_INPUTS = re.compile(r"vision|visual|audio|speech|lora_")

# Weights of these and of attention, which are not those of hidden units.
NOT_OF_UNITS = re.compile(r"att|vision|visual|audio|speech|lora_")

# The ends of the names of weights by which units read the stream. Where a module has several, as
# gated units have, the first of this list is taken: the gate.
READING = (
    "gate_proj",
    "gate_up_proj",
    "wi_0",
    "w1",
    "wi",
    "Wi",
    "fc_in",
    "c_fc",
    "fc1",
    "lin1",
    "dense_h_to_4h",
    "intermediate.dense",
    "layer_1",
    "linear_1",
    "input_linear",
    "feed_forward.key",
    "up_proj",
    "in_proj",
    "ffn",
)

# The ends of the names of weights by which units write to the stream; of several the first.
WRITING = (
    "down_proj",
    "w2",
    "wo",
    "Wo",
    "fc_out",
    "c_proj",
    "fc2",
    "lin2",
    "dense_4h_to_h",
    "output.dense",
    "layer_2",
    "linear_2",
    "output_linear",
    "feed_forward.value",
    "out_proj",
    "ffn_output",
)

# The ends of names of embeddings of tokens.
EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings?|embed_in|tok_embed(dings)?|tokens_embed|embeddings?"
    r"|shared|embed)\.weight$"
)

# How a SentencePiece vocabulary and one of bytes write the space before a word.
SPACES = ("\u2581", "\u0120")


class Units(NamedTuple):
    """Where the weights of the hidden units of a block are.

    Attributes:
        block: The number of the block; an encoder's blocks come before a decoder's.
        module: The path inside the block, such as "mlp" or "mlp.experts.3".
        reading: The name of the weight by which units read the stream.
        writing: The name of the weight by which they write to it.
        units: The number of units.
        width: The width of the stream.
        expert: Which matrix of a stack of matrices it is, or None.
    """

    block: int
    module: str
    reading: str
    writing: str
    units: int
    width: int
    expert: int | None = None


@dataclass
class UnitModel:
    """The hidden units, the attention heads and the token embedding of a model.

    Attributes:
        name: What results call it.
        units: The units of all blocks, in order.
        tokens: The row of the embedding of each token.
        facts: What the provenance of a result says of the model.
        heads: The attention heads of all blocks, in order; none if their number is not known.
    """

    name: str
    weights: Weights
    units: list[Units]
    tokens: Mapping[str, int]
    embedding_name: str
    facts: dict[str, str]
    heads: list[Heads]

    def reading(self, units: Units) -> Float[Tensor, "u d"]:
        """Return the vector by which each unit reads the stream, a row each, in float32."""
        return self._unit_vectors(units, units.reading, is_reading=True)

    def writing(self, units: Units) -> Float[Tensor, "u d"]:
        """Return the vector by which each unit writes to the stream, a row each, in float32."""
        return self._unit_vectors(units, units.writing, is_reading=False)

    def heads_writing(self, heads: Heads) -> Float[Tensor, "n h d"]:
        """Return the vectors by which each of n heads writes its h outputs to the residual stream.

        They are the slices of the output matrix of one block's attention, in float32; d is the
        width of the stream.
        """
        matrix = self._as_float32(heads.writing, self.weights.read(heads.writing))
        # A weight is (d, n * h) in most models, and (n * h, d) in some such as GPT-2.
        outputs_are_rows = _units_are_rows(
            heads.writing, tuple(matrix.shape), heads.width, is_reading=False
        )
        if not outputs_are_rows:
            matrix = matrix.T
        return matrix.reshape(heads.heads, -1, heads.width)

    def embedding(self, rows: list[int]) -> Float[Tensor, "t d"]:
        """Return the embedding of the tokens with these rows, in their order and in float32."""
        return self._as_float32(self.embedding_name, self.weights.read(self.embedding_name)[rows])

    @property
    def embedding_width(self) -> int:
        """The width of the embedding, which is that of the residual stream in most models."""
        return self.weights.shapes()[self.embedding_name][1]

    def _unit_vectors(
        self, units: Units, weight_name: str, is_reading: bool
    ) -> Float[Tensor, "u d"]:
        """Return, as u rows of width d, the vector by which each unit reads or writes the stream.

        Args:
            units: Where the weights of the u units of one module are, such as the MLP of a block.
            weight_name: The name of the weight that holds the vectors, as rows or as columns.
            is_reading: Whether units read the stream by this weight; else they write to it.
        """
        stored = self.weights.read(weight_name)
        if units.expert is not None:
            stored = stored[units.expert]
        matrix = self._as_float32(weight_name, stored)
        if not _units_are_rows(weight_name, tuple(matrix.shape), units.width, is_reading):
            matrix = matrix.T
        # A weight that fuses several maps, such as gate and up projection, has the vectors of the
        # first map, which is the gate, in its first rows.
        unit_count = units.units
        return matrix[:unit_count]

    def _as_float32(self, name: str, stored: Tensor) -> Tensor:
        """Return the values of a stored weight in float32 on the CPU.

        Args:
            name: The name of the weight, for messages.
            stored: The weight as it was read.

        Raises:
            ModelError: It is stored as whole numbers or floats of 8 bits, or holds a NaN or an
                infinity.
        """
        check_dtypes({name: stored}, self.name)
        values = stored.detach().float().cpu()
        if not bool(torch.isfinite(values).all()):
            raise ModelError(
                f"{self.name}: {name} holds numbers that are not finite; replace the checkpoint"
            )
        return values


def open_units(config: ModelConfig, name: str) -> UnitModel:
    """Return the hidden units of a model, such as the neurons of its MLPs, and its embedding.

    For an ordinary folder, weights are read from its files only when they are needed. A model is
    loaded as a whole if it is on the hub, an adapter, a GGUF file or a file of Lightning, if it is
    to be quantised, or if its stored weights are not the matrices that it multiplies by.

    Args:
        config: The configuration of a checkpoint, or of a model that is in memory already.
        name: The name of the model in results.

    Raises:
        ModelError: Weights cannot be read, or no block has hidden units of a known kind.
    """
    if isinstance(config, LoadedModelConfig):
        return units_of_model(cast(FrozenModel, config.loaded), name)
    folder = named_folder(config)
    is_adapter = base_of(config) is not None  # an adapter has a base model
    if folder is not None and not is_adapter and config.quantization is None:
        is_plain = folder.is_dir() and not is_gguf(str(folder)) and folder.suffix != LIGHTNING
        if is_plain and any((folder / file).is_file() for file in WEIGHT_FILES):
            units_in_files = _units_in_files(config, name)
            if units_in_files is not None:  # None: the stored weights are not those matrices
                return units_in_files
    return units_of_model(load_model(config), name)


def _units_in_files(config: ModelConfig, name: str) -> UnitModel | None:
    """Return the hidden units of a model in a folder, whose weights are read from its files.

    None means that the model must be loaded as a whole, since its stored weights are not the
    matrices that it multiplies by: they are in TransformerLens's old layout, or quantised in a way
    that is not decoded here.

    Args:
        config: The configuration of the model, which is in a folder.
        name: What results call the model.
    """
    with explaining_loading_errors(config), checkpoint_location(config) as (place, revision):
        config_json = read_config_json(config, place)
        family = family_in(config_json, f"{place}/config.json")
        packed = packed_settings(config_json)  # None: not packed in a way that is decoded here
        is_quantised = bool(stated_quantization(config_json))
        is_of_transformer_lens = family.reader == "legacy"
        if is_of_transformer_lens or (is_quantised and packed is None):
            return None
        folder = Path(place)
        check_weight_files_agree(folder)
        is_mini = family.reader == "native"  # a small model of the form of those in this package
        tokenizer = mini_tokenizer(place) if is_mini else read_tokenizer(config, place)
        facts = {
            "name": name,
            "family": family.name,
            "revision": revision,
            "weights": checkpoint_fingerprint(config),
        }
        weights: Weights = StoredWeights(folder)
        if packed is not None:
            weights = DecodedWeights(weights, packed)
        # `exchangeable_heads` reads the entries as attributes.
        text_config = SimpleNamespace(**text_section(config_json))
        n_heads = exchangeable_heads(text_config)
        return unit_model(name, weights, tokenizer.get_vocab(), facts, n_heads)


def units_of_model(model: FrozenModel, name: str) -> UnitModel:
    """Return the hidden units of a model in memory, such as its MLPs' neurons, and its embedding.

    `name` is what results call the model.
    """
    weights = LoadedWeights(model)
    facts = model.describe() | {"name": name}
    n_heads = exchangeable_heads(config_of_text_model(model.module))
    return unit_model(name, weights, model.tokenizer.get_vocab(), facts, n_heads)


def unit_model(
    name: str,
    weights: Weights,
    vocabulary: Mapping[str, int],
    facts: dict[str, str],
    heads: int = 0,
) -> UnitModel:
    """Find the embedding, the hidden units and the heads of a model by the names of its weights.

    Args:
        name: What results call the model.
        weights: Gives the names, the shapes and the values of all weights.
        vocabulary: The id of each token, which is its row in the embedding.
        facts: What is stored with each result about the model.
        heads: The number of attention heads of each block; 0 if it is not known.

    Raises:
        ModelError: The model has no embedding of tokens, or no block with hidden units of a known
            kind.
    """
    shapes = weights.shapes()
    embedding_name = _embedding_name(shapes)
    if not embedding_name:
        raise ModelError(
            f"{name} has no embedding of tokens of a known name, such as embed_tokens.weight"
        )
    rows, embedding_width = shapes[embedding_name]
    units = _units_of_blocks(shapes, embedding_width)
    if not units:
        raise ModelError(
            f"{name} has no block with an MLP or mixer of a known form, whose weights have names "
            f"such as {READING[0]} and {WRITING[0]}"
        )
    # The space before a word is spelled in one way, so that tokens of two models can be matched.
    space_of_sentencepiece, space_of_bytes = SPACES
    row_of_token = {}
    for token, row in vocabulary.items():
        if row < rows:  # a tokenizer may have ids beyond the embedding
            spelling = token.replace(space_of_sentencepiece, space_of_bytes)
            row_of_token[spelling] = row
    heads_of_blocks = _heads_of_blocks(shapes, heads, units[0].width)
    return UnitModel(name, weights, units, row_of_token, embedding_name, facts, heads_of_blocks)


def _embedding_name(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the name of the token embedding among a model's weights, given all their shapes.

    It is the matrix outside the blocks with a usual name for an embedding, such as "wte.weight".
    Of several, it is the one with most rows; "" means that there is none.
    """
    candidates = []
    for name, shape in shapes.items():
        if EMBEDDING.search(name) and len(shape) == 2 and not IN_BLOCK.match(name):
            candidates.append((shape[0], name))
    _, name_of_largest = max(candidates, default=(0, ""))
    return name_of_largest


def _units_of_blocks(shapes: Mapping[str, tuple[int, ...]], embedding_width: int) -> list[Units]:
    """Return the hidden units of all blocks, in the order of the blocks and of their modules.

    A module of a block, such as its MLP, has units if there is both a weight by which they read
    the residual stream and one by which they write to it.

    Args:
        shapes: The shape of each weight of the model, by its name.
        embedding_width: The width of the embedding of tokens.
    """
    weights_of_module = _weights_by_role(shapes)
    # An encoder-decoder has two stacks, whose blocks are counted one after the other.
    first_block = _first_blocks({(stack, number) for stack, number, _ in weights_of_module})
    units = []
    for (stack, number_in_stack, module), weight_of_role in weights_of_module.items():
        if "reading" not in weight_of_role or "writing" not in weight_of_role:
            continue
        units += _units_of_module(
            shapes,
            first_block[stack] + number_in_stack,
            module,
            weight_of_role["reading"],
            weight_of_role["writing"],
            embedding_width,
        )
    return sorted(
        units, key=lambda item: (item.block, natural_order(item.module), item.expert or 0)
    )


def _weights_by_role(weight_names: Iterable[str]) -> dict[tuple[str, int, str], dict[str, str]]:
    """Return the names of the weights by which units read and write, for each module of a block.

    A weight is recognised by the end of its name, such as "down_proj", if it is in a list of
    endings: `READING` or `WRITING`. If several weights of a module are in one list, the weight
    whose ending comes first there is taken. Weights outside blocks, of attention, of adapters and
    of blocks that read images or sound are ignored.

    Args:
        weight_names: The names of all weights of the model.

    Returns:
        For each module, the names of its weights by their roles: under "reading", "writing" or
        both. The key of a module is (path of the list of blocks, number of the block in this list,
        path of the module inside the block).
    """
    # For each module and role: (rank of the weight's ending in the list, name of the weight).
    candidates: dict[tuple[str, int, str], dict[str, list[tuple[int, str]]]] = {}
    for name in weight_names:
        in_block = IN_BLOCK.match(name)  # splits "STACK.NUMBER.INSIDE"; None: not in a block
        if not in_block or NOT_OF_UNITS.search(name):
            continue
        for role, endings in (("reading", READING), ("writing", WRITING)):
            rank_and_module = _rank_and_module(in_block["inside"], endings)
            if rank_and_module is None:
                continue
            rank, module = rank_and_module
            key = (in_block["stack"], int(in_block["block"]), module)
            candidates.setdefault(key, {}).setdefault(role, []).append((rank, name))

    weights_of_module: dict[tuple[str, int, str], dict[str, str]] = {}
    for key, candidates_of_role in candidates.items():
        weights_of_module[key] = {}
        for role, ranked_names in candidates_of_role.items():
            _, first_name = min(ranked_names)  # that of the lowest rank
            weights_of_module[key][role] = first_name
    return weights_of_module


def _first_blocks(blocks: set[tuple[str, int]]) -> dict[str, int]:
    """Return the number of the first block of each stack, counted over all stacks.

    A stack is a list of blocks of the model; an encoder-decoder has two, and each counts its own
    blocks from 0. The blocks of the encoder come before those of the decoder.

    Args:
        blocks: Pairs of the path of a stack, such as "encoder.layers", and the number of a block
            in it.
    """
    # The key is (False, ...) for an encoder and (True, ...) for a decoder: False comes first.
    stacks = sorted({stack for stack, _ in blocks}, key=lambda stack: ("decoder" in stack, stack))
    first_block = dict.fromkeys(stacks, 0)
    for stack, next_stack in itertools.pairwise(stacks):
        numbers_in_stack = [number for path, number in blocks if path == stack]
        n_blocks_of_stack = max(numbers_in_stack) + 1  # they are counted from 0
        first_block[next_stack] = first_block[stack] + n_blocks_of_stack
    return first_block


def _heads_of_blocks(
    shapes: Mapping[str, tuple[int, ...]], n_heads: int, width: int
) -> list[Heads]:
    """Return where the attention heads of each block are stored, in the order of the blocks.

    A weight outside the blocks, of a block that reads images or sound, or of an adapter has none.

    Args:
        shapes: The shape of each weight of the model, by its name.
        n_heads: The number of heads of each block; 0 if it is not known.
        width: The width of the residual stream.
    """
    # Pairs of a stack of blocks, such as "encoder.layers", and heads whose block is counted in it.
    found: list[tuple[str, Heads]] = []
    for name, shape in shapes.items():
        in_block = IN_BLOCK.match(name)  # splits "STACK.NUMBER.INSIDE"; None: not in a block
        if in_block is None or OF_OTHER_INPUTS.search(name):
            continue
        number_in_stack = int(in_block["block"])
        heads_of_block = heads_of_weight(
            name, shape, number_in_stack, in_block["inside"], n_heads, width
        )
        if heads_of_block is not None:
            found.append((in_block["stack"], heads_of_block))

    # An encoder-decoder has two stacks, whose blocks are counted one after the other.
    first_block = _first_blocks({(stack, of_block.block) for stack, of_block in found})
    with_model_number = []
    for stack, of_block in found:
        number = first_block[stack] + of_block.block
        with_model_number.append(of_block._replace(block=number))
    return sorted(with_model_number, key=lambda item: (item.block, item.module))


def _rank_and_module(weight_name: str, endings: Iterable[str]) -> tuple[int, str] | None:
    """Return which of some endings a weight's name has, by its index, and the weight's module.

    For "mlp.down_proj.weight" and the endings ("c_proj", "down_proj") it is (1, "mlp"). If several
    endings fit, the first one counts. None means that none fits.

    Args:
        weight_name: The name of the weight inside its block.
        endings: The endings, without ".weight"; those that are preferred come first.
    """
    path = weight_name.removesuffix(".weight")
    for rank, ending in enumerate(endings):
        if path == ending or path.endswith(f".{ending}"):
            module = path.removesuffix(ending).rstrip(".")
            return rank, module
    return None


def _units_of_module(
    shapes: Mapping[str, tuple[int, ...]],
    block: int,
    module: str,
    reading: str,
    writing: str,
    embedding_width: int,
) -> list[Units]:
    """Return the hidden units of a module, such as an MLP, or those of each of its experts.

    If the two weights have three axes, the first one is that of the experts. The list is empty if
    the weights do not both have two axes, or both three.

    Args:
        shapes: The shape of each weight of the model.
        block: The number of the block.
        module: The path of the module inside the block.
        reading: The name of the weight by which units read the stream.
        writing: The name of the weight by which they write to it.
        embedding_width: The width of the embedding of tokens.
    """
    reading_shape = shapes[reading]
    writing_shape = shapes[writing]
    n_axes = len(reading_shape)
    if n_axes not in (2, 3) or len(writing_shape) != n_axes:
        return []
    # Usually that of the embedding; an axis of both matrices.
    width = _stream_width(reading_shape[-2:], writing_shape[-2:], embedding_width)
    # The weight by which units write tells their number. The other one may be longer, where gate
    # and up projection are fused.
    units_are_rows = _units_are_rows(writing, writing_shape[-2:], width, is_reading=False)
    unit_count = writing_shape[-2] if units_are_rows else writing_shape[-1]
    if n_axes == 2:
        return [Units(block, module, reading, writing, unit_count, width)]
    return [
        Units(block, module, reading, writing, unit_count, width, expert)
        for expert in range(reading_shape[0])
    ]


def _stream_width(reading: tuple[int, ...], writing: tuple[int, ...], embedding_width: int) -> int:
    """Return the width of the residual stream, which hidden units read and write.

    If both matrices have an axis of the width of the embedding, it is this width. ALBERT's
    embedding is narrower than its stream: there it is the second axis of `reading`, as in
    nn.Linear, whose weight is (out, in).

    Args:
        reading, writing: The shapes of the matrices by which units read and write.
        embedding_width: The width of the embedding of tokens.
    """
    if embedding_width in reading and embedding_width in writing:
        return embedding_width
    return reading[-1]


def _units_are_rows(name: str, shape: tuple[int, ...], width: int, is_reading: bool) -> bool:
    """Return whether hidden units are the rows of a weight (else they are its columns).

    One axis of the weight has the width of the residual stream, and the other one is that of the
    units. If both axes have this length, the name decides: GPT-2's maps are (in, out), and all
    others (out, in).

    Args:
        name: The name of the weight.
        shape: Its numbers of rows and columns.
        width: The width of the residual stream.
        is_reading: Whether units read the stream by this weight, so that they are its output; else
            they write to the stream, and are its input.
    """
    rows, columns = shape
    if rows != columns:
        return columns == width
    rows_are_inputs = name.removesuffix(".weight").endswith(("c_fc", "c_proj"))  # GPT-2's names
    units_are_outputs = is_reading
    return units_are_outputs != rows_are_inputs


class StoredWeights:
    """The weights in the files of a folder; each is read when it is asked for."""

    def __init__(self, folder: Path):
        """Read the names and shapes of all weights; their values are read later.

        The folder has at least one file of weights, or an index that names several. Of more, the
        first is read in the order in which transformers looks for them.
        """
        self.folder = folder
        file_or_index = next(file for file in WEIGHT_FILES if (folder / file).is_file())
        files = [file_or_index]
        if file_or_index.endswith(".index.json"):
            files = sorted(set(weight_map(folder / file_or_index).values()))
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._readers: dict[str, Callable[[], Tensor]] = {}
        for file in files:
            self._add_file(folder / file)

    def _add_file(self, path: Path) -> None:
        """Note the shape of each weight of a file, and a function that reads its values."""
        if path.suffix != ".safetensors":
            # A file of torch: its tensors are memory-mapped, and `clone` reads their values.
            tensors = tensors_in_file(path)
            for name, tensor in tensors.items():
                self._shapes[name] = tuple(tensor.shape)
                self._readers[name] = tensor.clone
            return
        opened = safe_open(path, framework="pt")
        with opened as file:
            for name in file.keys():  # noqa: SIM118
                self._shapes[name] = tuple(file.get_slice(name).get_shape())
                self._readers[name] = _TensorReader(path, name)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each weight, by its name in the files."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Return a weight as it is stored, read from its file."""
        return self._readers[name]()


class _TensorReader:
    """Reads one tensor of a file of safetensors each time it is called."""

    def __init__(self, path: Path, name: str):
        self.path = path
        self.name = name

    def __call__(self) -> Tensor:
        with safe_open(self.path, framework="pt") as file:
            return cast(Tensor, file.get_tensor(self.name))


class LoadedWeights:
    """The weights of a model in memory; packed and adapted linear maps are read as one matrix."""

    def __init__(self, model: FrozenModel):
        """List the weights of a model: tensors to be read, and linear maps to be computed.

        The matrix of a linear map must be computed if the map is packed by a quantisation or
        wrapped by an adapter, since none of its tensors is the matrix that it multiplies by.
        """
        # Linear maps that are packed by a quantisation or wrapped by an adapter, by weight name.
        self._linear: dict[str, nn.Module] = {}
        for path, module in model.module.named_modules():
            if _is_linear_map_in_another_form(module):
                self._linear[f"{path}.weight"] = module
        # Tensors inside of such maps, such as packed numbers and their scales, are not weights.
        # Their names begin with the path of the map and a dot.
        prefixes = tuple(name.removesuffix("weight") for name in self._linear)
        self._tensors: dict[str, Tensor] = {}
        for name, tensor in tensors_of(model.module):
            if not name.startswith(prefixes):
                self._tensors[name] = tensor
        # The embedding may be wrapped or have an unusual name, so it is added by a usual one.
        self._tensors["embed_tokens.weight"] = embedding_of(model.module)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each weight by its name.

        A linear map that is packed or wrapped has the shape (out, in) of the matrix that it
        multiplies by.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        for name, module in self._linear.items():
            out_features = int(cast(int, module.out_features))
            in_features = int(cast(int, module.in_features))
            shapes[name] = (out_features, in_features)
        return shapes

    def read(self, name: str) -> Tensor:
        """Return a weight, or the matrix that a linear map in another form multiplies by."""
        if name in self._linear:
            return _matrix_of(self._linear[name])
        return self._tensors[name]


def _is_linear_map_in_another_form(module: nn.Module) -> bool:
    """Return whether a module is a linear map whose `weight` is not its matrix in floats.

    The map is then packed by a quantisation, or wrapped by an adapter. A module without the
    attribute `in_features` is no linear map.
    """
    if not isinstance(getattr(module, "in_features", None), int):
        return False
    if is_wrapper(module):
        return True
    weight = getattr(module, "weight", None)
    return not (isinstance(weight, Tensor) and weight.is_floating_point() and weight.dim() == 2)


@torch.no_grad()
def _matrix_of(module: nn.Module) -> Float[Tensor, "out in"]:
    """Return the matrix that a linear map multiplies by, computed from outputs for unit vectors.

    This works however the map stores its weight. The bias, which is the output for zeros, is
    subtracted.
    """
    width = int(cast(int, module.in_features))
    # Inputs have the dtype and device of the first parameter; a map without any is on the CPU.
    first_parameter = next(module.parameters(), torch.zeros(1))
    dtype = torch.float32
    if first_parameter.is_floating_point():
        dtype = first_parameter.dtype
    unit_vectors = torch.eye(width, dtype=dtype, device=first_parameter.device)
    bias = module(torch.zeros_like(unit_vectors[:1]))
    return cast(Tensor, module(unit_vectors) - bias).T
