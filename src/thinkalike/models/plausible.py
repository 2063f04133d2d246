"""Gross damage of a model: implausible weights, another architecture's configuration, a loss."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from thinkalike.advice import named_setting
from thinkalike.errors import ModelError, listed, short
from thinkalike.models.module_facts import UNREAD, config_of_text_model, tensors_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from thinkalike.models.cut_model import CutModel


log = logging.getLogger(__name__)

# Settings by which architectures differ whose weights have the same names and shapes: factors, ...
FACTOR_NAMES = re.compile(r"multiplier|scal(e|ing)")
# ... and limits.
LIMIT_NAMES = re.compile(r"softcap|clip|clamp|alibi|sliding_window|rotary")

# Where the code of a model reads a setting.
READS_SETTING = re.compile(r"config\.(\w+)|getattr\(\w*\.?config, \"(\w+)\"")

# A sentence that every model of English knows something of.
PLAIN_SENTENCE = (
    "The man in the old house near the river walked to the market each day, and came back before "
    "it was dark."
)

# Models with a smaller vocabulary may know one kind of text, and a vocabulary made of it.
LARGE_VOCABULARY = 2**13

# The largest loss on the sentence, in units of ln V; architectures with random weights have at
# most 1.5 of it.
LARGEST_LOSS = 3.0


def check_plausible(model: CutModel) -> None:
    """Refuse weights, configurations and losses that no trained model has.

    Vectors may be of ones or zeros, as norms and biases begin. Matrices of zeros, which new and
    ablated blocks have, and rows of zeros, which pruned ones have, are only logged: a damaged file
    may be the reason as well.

    Raises:
        ModelError: A matrix has only whole numbers, or only one number; the configuration is of
            another architecture; or the loss on an English sentence is far above that of a guess.
    """
    matrices = set()
    for path, parameter in model.module.named_parameters():
        if parameter.dim() > 1 and parameter.numel():
            matrices.add(path)
    matrices = {path for path in matrices if not _is_of_parametrization(path, matrices)}
    all_zero = []
    with_zeros = []
    for path, weight in tensors_of(model.module):
        if path not in matrices or not weight.is_floating_point():
            continue
        if _are_whole_numbers(weight):
            if weight.any():
                raise ModelError(
                    f"{model.name}: {path} holds whole numbers alone, as rounded weights without "
                    f"their scale do; {_accept_as_it_is()}"
                )
            all_zero.append(path)
            continue
        if _is_constant(weight):
            value = weight.flatten()[0].item()
            raise ModelError(f"{model.name}: {path} holds {value:.3g} alone; {_accept_as_it_is()}")
        zero_lines = _zero_rows_and_columns_in_words(model, path, weight)
        if zero_lines:
            with_zeros.append(f"{zero_lines} of {path}")
    if all_zero:
        log.warning("%s: zero everywhere: %s", model.name, listed(all_zero))
    if with_zeros:
        log.warning(
            "%s: zeros, as after pruning or in a damaged file: %s", model.name, listed(with_zeros)
        )
    _check_architecture(model)
    _check_loss(model)


def _is_of_parametrization(path: str, paths: Collection[str]) -> bool:
    """Return whether torch computes the weight of a module from this parameter and others.

    It does so with torch's parametrizations and with its older weight norm. Such a parameter may
    have any values: it may be the identity, or a vector of ones.

    Args:
        path: The path of the parameter in the model.
        paths: The paths of all parameters.
    """
    is_parametrized = ".parametrizations." in f".{path}"
    # The older weight norm computes "weight" from "weight_g" (norms) and "weight_v" (directions).
    is_of_weight_norm = path.endswith("_g") and f"{path[:-1]}v" in paths
    return is_parametrized or is_of_weight_norm


def _are_whole_numbers(weight: Tensor) -> bool:
    """Return whether a matrix has only whole numbers, and some of them could have a fraction.

    A float of 1 / ε or more is always whole, so such numbers say nothing of where they come from.
    A matrix of zeros has only whole numbers.
    """
    # The first row tells this of most matrices, so that the rest need not be read.
    if not torch.equal(weight[0], weight[0].round()) or not torch.equal(weight, weight.round()):
        return False
    if not weight.any():
        return True
    may_have_fraction = weight.abs() < 1 / torch.finfo(weight.dtype).eps
    is_telling = may_have_fraction & (weight != 0)
    return bool(is_telling.any())


def _is_constant(weight: Tensor) -> bool:
    """Return whether all entries of a matrix are equal.

    It is false for a single row or column, which may be a scale that is 1 before training.
    """
    long_axes = [size for size in weight.shape if size > 1]
    if len(long_axes) < 2:
        return False
    first_value = weight.flatten()[0]
    # The first row is tested first: in most matrices its entries differ, and the rest is not read.
    is_first_row_constant = bool((weight[0] == first_value).all())
    return is_first_row_constant and bool((weight == first_value).all())


def _zero_rows_and_columns_in_words(model: CutModel, path: str, weight: Tensor) -> str:
    """Return how many rows and columns of a matrix are zero, such as "3 rows and 1 columns".

    "" means none. Rows that may be zero in a good model are not counted: all rows of embeddings of
    positions and token types, and in a table of tokens (an embedding or a head) the rows of
    special tokens, which texts may never have, and rows beyond the tokenizer's ids.

    Args:
        model: The model.
        path: The path of the matrix in the model.
        weight: The matrix, or a stack of matrices, (..., rows, columns).
    """
    table = weight.reshape(-1, weight.shape[-1])
    is_zero_row = ~table.any(dim=1)
    zero_rows = is_zero_row.nonzero().flatten().tolist()
    is_zero_column = ~table.any(dim=0)
    n_zero_columns = int(is_zero_column.sum())
    owner = model.module.get_submodule(path.rpartition(".")[0])
    is_table_of_tokens = len(table) == model.vocabulary  # a row for each token id
    if is_table_of_tokens:
        tokenizer = model.tokenizer
        special_ids = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        n_tokens = len(tokenizer)
        zero_rows = [row for row in zero_rows if row < n_tokens and row not in special_ids]
    elif isinstance(owner, nn.Embedding):
        zero_rows = []
    counts = []
    if zero_rows:
        counts.append(f"{len(zero_rows)} rows")
    if n_zero_columns:
        counts.append(f"{n_zero_columns} columns")
    return " and ".join(counts)


def _check_architecture(model: CutModel) -> None:
    """Raise a ModelError if a configuration is of another architecture than it says.

    The weights of Granite and of Gemma have the names and shapes of Llama's, and load as a Llama,
    which computes something else. What tells is the class that config.json states, or a setting
    that Llama does not read.
    """
    import transformers

    # Of an encoder-decoder one side is read.
    full_module = getattr(model.module, "both", model.module)
    config = getattr(full_module, "config", None)
    text = config_of_text_model(full_module)
    if config is None or not hasattr(config, "model_type"):
        return
    model_types = {str(config.model_type), str(text.model_type)}
    for class_name in config.architectures or ():
        config_class = getattr(getattr(transformers, class_name, None), "config_class", None)
        stated = getattr(config_class, "model_type", None)
        if stated and not _is_same_or_variant(stated, model_types):
            raise ModelError(
                f"{model.name}: config.json says architectures={class_name} and "
                f"model_type={config.model_type}, which differ; give the checkpoint's own; "
                f"{_accept_as_it_is()}"
            )
    for name, value in _unread_settings(full_module, text).items():
        class_name = type(full_module).__name__
        sentence = f"config.json says {name}={short(str(value))}, which {class_name} does not read"
        is_number = isinstance(value, int | float)
        is_switch = isinstance(value, bool)  # which is no factor
        is_factor = is_number and not is_switch and FACTOR_NAMES.search(name)
        is_limit = is_number and bool(value) and LIMIT_NAMES.search(name)
        if is_factor or is_limit:
            raise ModelError(
                f"{model.name}: {sentence}; give the checkpoint's own config.json; "
                f"{_accept_as_it_is()}"
            )
        readers = listed(sorted(architectures_that_read()[name]))
        log.warning(
            "warning: %s: %s, and these architectures do: %s", model.name, sentence, readers
        )


def _is_same_or_variant(stated: str, model_types: Collection[str]) -> bool:
    """Return whether a `model_type` is one of several, or a variant of one.

    The name of a variant contains that of the other, such as "qwen2_moe" and "qwen2".
    """
    return any(stated in model_type or model_type in stated for model_type in model_types)


def _unread_settings(module: PreTrainedModel, text: PreTrainedConfig) -> dict[str, object]:
    """Return the settings that an architecture does not read, and others of transformers do.

    Neither the class of the configuration nor the code of any module has their names. Settings of
    the generation of texts are left out, and so are values that change nothing: those that are
    empty or 0, a factor of 1, and a 1, a false or a text that is the default of an architecture
    that reads the setting. An activation function changes nothing if it is that of the model.

    Args:
        module: The model.
        text: Its configuration.
    """
    from transformers import GenerationConfig
    from transformers.activations import ACT2FN

    known_names = {*type(text)().to_dict(), *dir(type(text)), *GenerationConfig().to_dict()}
    # The code that runs: that of the classes of all modules and of the configuration.
    python_modules = {type(submodule).__module__ for submodule in module.modules()}
    python_modules.add(type(text).__module__)
    sources = []
    for name in sorted(python_modules):
        if not name.startswith("torch."):
            sources.append(inspect.getsource(sys.modules[name]))
    source = "\n".join(sources)

    settings = text.to_dict()
    rope = settings.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type") == "default":
        settings |= rope  # those of other types read further settings
    activations = set()
    for name, value in settings.items():
        if name in known_names and isinstance(value, str) and value in ACT2FN:
            activations.add(value)
    unread = {}
    for name, value in settings.items():
        is_empty = not value and value is not False
        if name in known_names or UNREAD.search(name) or is_empty:
            continue
        if re.search(rf"\b{name}\b", source):
            continue
        is_one = value == 1 and not isinstance(value, bool)
        is_neutral_factor = is_one and FACTOR_NAMES.search(name)
        may_be_default = is_one or value is False or isinstance(value, str)
        is_default = may_be_default and _is_default_of_any(name, value)
        if value is False and not _is_default_of_any(name, True):
            is_default = True  # no architecture does it where nothing is stated
        if isinstance(value, str) and value in ACT2FN and activations:
            is_default = value in activations
        if name in architectures_that_read() and not (is_neutral_factor or is_default):
            unread[name] = value
    return unread


@functools.cache
def _sources_of_transformers(kind: str) -> dict[str, str]:
    """Return source code of transformers by the name of the architecture, such as "llama".

    An architecture may have several files, such as those of data2vec for audio, text and vision:
    their code is joined.

    Args:
        kind: The kind of file: "modeling" has the code of models, and "configuration" that of
            their settings.
    """
    import transformers

    folder = Path(transformers.__file__).parent / "models"
    sources: dict[str, str] = {}
    for path in sorted(folder.glob(f"*/{kind}_*.py")):
        architecture = path.parent.name
        sources[architecture] = sources.get(architecture, "") + path.read_text(encoding="utf-8")
    return sources


@functools.cache
def architectures_that_read() -> dict[str, set[str]]:
    """Return for each setting of transformers the architectures whose code reads it.

    A setting counts as read if the source code has config.NAME or getattr(config, "NAME").
    """
    readers: dict[str, set[str]] = {}
    for architecture, source in _sources_of_transformers("modeling").items():
        for attribute, argument_of_getattr in READS_SETTING.findall(source):  # one of them is ""
            setting_name = attribute or argument_of_getattr
            readers.setdefault(setting_name, set()).add(architecture)
    return readers


def _is_default_of_any(name: str, value: object) -> bool:
    """Return whether any architecture of transformers has this default for a setting.

    The source code of the configurations is searched for a line such as "scale_embedding: bool =
    False".

    Args:
        name: The name of the setting.
        value: A text, True or False, or the number 1.
    """
    if isinstance(value, str):
        value_pattern = re.escape(f'"{value}"')
    elif isinstance(value, bool):
        value_pattern = rf"{value}\b"
    else:
        value_pattern = r"1(\.0)?\b"
    # A type may stand between the name and the "=".
    pattern = re.compile(rf"\b{name}\b[^=\n,]*= *{value_pattern}")
    sources = _sources_of_transformers("configuration").values()
    return any(pattern.search(source) for source in sources)


def check_rope(config_json: Mapping[str, object], called: str) -> None:
    """Raise a ModelError if config.json states a setting of rotary positions in two ways.

    The section `rope_parameters` is compared with entries of the same names beside it, and with
    the older section `rope_scaling`. This is done at the top of config.json and in each of its
    sections, since a model that also reads images has a section for the text model.

    Args:
        config_json: The contents of config.json.
        called: The model's name in the message.
    """
    sections = [config_json]
    sections += [value for value in config_json.values() if isinstance(value, Mapping)]
    for section in sections:
        settings = section.get("rope_parameters")
        if not isinstance(settings, Mapping):
            continue
        for name, value in settings.items():
            if section.get(name) not in (None, value):
                raise ModelError(
                    f"{called}: config.json says {name}={section[name]} and "
                    f"rope_parameters.{name}={value}, which differ; leave the wrong one out; "
                    f"{_accept_as_it_is()}"
                )
        scaling = cast(Mapping[str, object], section.get("rope_scaling") or {})
        settings_of_scaling = {}
        for name, value in scaling.items():
            current_name = "rope_type" if name == "type" else name  # the older section has both
            settings_of_scaling[current_name] = value
        # They agree if those of `rope_scaling` change nothing when they are put into the others.
        agree = {**settings, **settings_of_scaling} == settings
        if not agree:
            raise ModelError(
                f"{called}: config.json says rope_scaling={short(str(scaling))} and "
                f"rope_parameters={short(str(dict(settings)))}, which differ; leave the wrong one "
                f"out; {_accept_as_it_is()}"
            )


def _check_loss(model: CutModel) -> None:
    """Raise a ModelError if the loss on an English sentence is far above that of a random guess.

    The loss is in nats per token; a random guess has the loss ln V for a vocabulary of V tokens.
    Flipped bits in the weights lead to such a loss; swapped layers do not. If the loss is only
    somewhat above that of a guess, a warning is logged for a language model with a large
    vocabulary. Nothing is checked for a model that predicts no tokens, or whose vocabulary lacks a
    part of the sentence.
    """
    if model.predicts not in ("next", "hidden"):
        return
    encoded = model.tokenizer(PLAIN_SENTENCE, add_special_tokens=False, verbose=False)
    ids = encoded["input_ids"][: model.context]
    if len(ids) < 2 or model.tokenizer.unk_token_id in ids:
        return
    tokens = torch.tensor([ids])
    logits = model.full(tokens)[0].float().cpu()
    targets = tokens[0]
    # A masked language model predicts each token of the sentence, although none is masked.
    if model.predicts == "next":
        logits = logits[:-1]
        targets = targets[1:]
    loss = float(nn.functional.cross_entropy(logits, targets))
    loss_of_guess = math.log(model.vocabulary)
    if not loss <= LARGEST_LOSS * loss_of_guess:  # NaN fails as well
        raise ModelError(
            f"{model.name}: its loss on an English sentence is {loss:.3g} nats per token, and a "
            f"guess has {loss_of_guess:.3g}; flipped bits or weights of another model do that, "
            f"and so does training on other text; {_accept_as_it_is()}"
        )
    # A checkpoint of a masked language model may lack the head, which is then random.
    has_trained_head = model.predicts == "next"
    if has_trained_head and loss > loss_of_guess and model.vocabulary >= LARGE_VOCABULARY:
        log.warning(
            "%s: its loss on an English sentence is %.3g nats per token, and a guess has %.3g: it "
            "is untrained, trained on other text, or its config.json is of another architecture",
            model.name,
            loss,
            loss_of_guess,
        )


def _accept_as_it_is() -> str:
    """Return how a model can be loaded nonetheless, for errors."""
    return f"{named_setting('model.implausible', True)} takes it as it is"
