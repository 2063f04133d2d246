"""Functions that write folders of states, which then take the place of a model.

    compare("./states-a", "./states-b")

- `write_states` runs a model here, and keeps the outputs of its layers.
- `write_prompts` and `index_states` are for a model that runs elsewhere: the first writes the
  tokens to send to vLLM, the second makes a folder of states of what came back, or of what SAELens
  or NumPy wrote.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence, Set
from numbers import Integral
from pathlib import Path
from typing import Literal

from thinkalike.arguments import Count, check_whole_numbers, checks_arguments, shown
from thinkalike.config import ModelConfig
from thinkalike.config.parts import Site
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError, DataError, checked_path, in_home
from thinkalike.global_state import isolated
from thinkalike.inputs import Model, StimulusTable, Text, as_frozen_model, stimuli_config, text_config
from thinkalike.models.assembly import at_sites
from thinkalike.models.families import DEFAULT_CONTEXT
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_tokenizer
from thinkalike.models.model_config import configured
from thinkalike.models.module_facts import puts_bos
from thinkalike.models.rounding import check_can_be_rounded
from thinkalike.shards.arrays import DTYPES
from thinkalike.states.copies import copies_of
from thinkalike.states.folder import StateFolder, folder_of_rows
from thinkalike.states.pieces import drawn_pieces
from thinkalike.states.source import Reader, Tokenizer
from thinkalike.states.tokens import sites
from thinkalike.states.writing import (
    SentPrompt,
    TextRow,
    index_folder,
    read_prompt_file,
    write_folder,
    write_prompt_file,
)

DEFAULT_WORDS = 8192  # as many as measures of words compare by default
FEWEST_CONTEXT = 2  # tokens of a row
DEFAULT_CORPUS = "pydoc"
StatesDType = Literal["float64", "float32", "bfloat16", "float16"]
PathLike = str | os.PathLike[str]


@isolated()
@checks_arguments
def write_states(
    model: Model,
    folder: PathLike,
    *,
    texts: Text | None = None,
    stimuli: StimulusTable | None = None,
    layers: Sequence[int] | None = None,
    embed: bool = False,
    site: Site | Sequence[Site] = "resid_post",
    words: Count = DEFAULT_WORDS,
    context: int | None = None,
    dtype: StatesDType | None = None,
    field: str | None = None,
    group: str | None = None,
    copies: bool = False,
) -> Path:
    """Write the states of a model into a new folder, which can then take its place.

    Args:
        model: As other functions take it.
        folder: A folder that does not exist yet, or is empty. It appears when all is written.
        texts: As other functions take it; by default what suits the model. Another folder of
            states, so that the two can be compared: all its rows are read.
        stimuli: A table of stimuli in place of texts, for `mlem` and `rsa`: each of its texts
            becomes a row.
        layers: Numbers of blocks; by default all.
        embed: Whether to write what enters block 0, too.
        site: Where states are taken, by TransformerLens's names.
        words: How many words of the texts are written at least, drawn from as many documents as
            there are. A row is a piece of a document of up to 128 words.
        context: The most tokens of a row; by default what the model reads.
        dtype: Of the files; by default that of the model. With bfloat16 a folder takes half as
            much, and numbers move by its rounding.
        copies: Whether to write the states of changed copies of the model, too, so that
            `measure=ruler` reads bits of the folder's model: its weights rounded to 2, 3, 4, 5, 6
            and 8 bits, and untrained. Each copy takes another pass over the text and as much disk
            as the states of the model, so that a folder with copies takes 8 times the time and
            disk of one without. One copy at a time is in memory beside the model.

    Returns:
        The folder.

    >>> folder = write_states("gelu-3l-mini", "states", texts=["The cat sat on the mat."] * 5, layers=[1])
    >>> sorted(path.name for path in folder.iterdir())[:3]
    ['embedding.safetensors', 'rows.jsonl', 'states-00000.safetensors']
    """
    if texts is not None and stimuli is not None:
        raise ConfigError("texts and stimuli are written into folders of their own: leave one of them out")
    path = in_home(checked_path("folder", folder))
    if layers is not None:
        check_whole_numbers("layers", layers, fewest=1)
    source = as_frozen_model(model)
    if site != "resid_post":
        named_sites: Site | list[Site]
        if isinstance(site, str):
            named_sites = site
        else:
            named_sites = list(site)
        source = at_sites(source, ModelConfig(name=source.name, site=named_sites), source.name)
    hook_points = sites(source, embed, layers)
    source.check_layers(hook_points)
    if copies:
        check_can_be_rounded(source)
    file_dtype = source.dtype
    if dtype is not None:
        if dtype not in DTYPES:
            raise ConfigError(f"dtype={dtype} must be one of {', '.join(DTYPES)}")
        file_dtype = DTYPES[dtype]
    if stimuli is None:
        rows = _rows_of_text(texts, source, words, context, field, group)
    else:
        rows = _rows_of_stimuli(stimuli)
    changed_copies = None
    if copies:
        changed_copies = copies_of(source)
    write_folder(path, source, rows, hook_points, file_dtype, changed_copies)
    return path


@isolated()
@checks_arguments
def write_prompts(
    model: Model,
    path: PathLike,
    *,
    texts: Text | None = None,
    stimuli: StimulusTable | None = None,
    words: Count = DEFAULT_WORDS,
    context: int | None = None,
    field: str | None = None,
    group: str | None = None,
) -> Path:
    """Write the token ids that a model is to read elsewhere, as lines {"prompt_token_ids": [...], ...}.

    Send each list to vLLM as it is, and give the files that come back, and this one, to
    `index_states`. Of a model that is named, the tokenizer alone is read.

    Args:
        texts: As other functions take it, or a folder of states, all of whose rows are read; by
            default Python's reference.
        stimuli: A table of stimuli in place of texts, for `mlem` and `rsa`.
        words: How many words are written at least, drawn from as many documents as there are.
        context: The most tokens of a prompt.

    >>> path = write_prompts("gelu-3l-mini", "prompts.jsonl", texts=["The cat sat on the mat."] * 5)
    >>> path.read_text()[:21]
    '{"prompt_token_ids": '
    """
    if texts is not None and stimuli is not None:
        raise ConfigError("texts and stimuli are compared apart: write prompts of each")
    file = in_home(checked_path("path", path))
    if not file.name or file.is_dir():
        raise ConfigError(f"path={shown(str(path))} is a folder: give the path of a file in it")
    reader = _reader(model)
    if stimuli is None:
        rows = _rows_of_text(texts, reader, words, context, field, group)
    else:
        rows = _rows_of_stimuli(stimuli)
    prompts = [SentPrompt(reader.encoded(row.text)[0], row.document, row.text) for row in rows]
    if not prompts:
        raise DataError("the text has no words, so that there are no prompts to write: give more text")
    write_prompt_file(file, prompts)
    return file


@isolated()
@checks_arguments
def index_states(
    folder: PathLike,
    *,
    model: str,
    blocks: Count,
    tokenizer: str | Tokenizer | None = None,
    revision: str | None = None,
    layers: Sequence[int] | None = None,
    prompts: PathLike | None = None,
    documents: Iterable[object] | None = None,
) -> Path:
    """Write the index of a folder with states that another program wrote.

    After that, the folder can take the place of a model. Files are those of vLLM's
    extract_hidden_states, the data set that SAELens's CacheActivationsRunner writes, or
    .safetensors and .npy files with an array (rows, context, width) for each hook point of
    TransformerLens, by its name, and `token_ids` (rows, context).

    Args:
        folder: Where the files are; their digests are written down, so they must be complete.
        model: The name of the model, for the record.
        blocks: How many blocks it has, whether or not there are states of all of them.
        tokenizer: That of the model, or the name of a model that has it. Without it, states are
            compared token by token, with a folder of the same tokens alone.
        layers: Of vLLM: the layers that were asked for, as it counts them: layer i is what enters
            block i.
        prompts: Of vLLM: the file of `write_prompts`, which knows the text and the document of
            each prompt.
        documents: The document that each row is of, texts or whole numbers; by default each is one.

    >>> index_states("activations", model="mine", tokenizer="gelu-3l-mini", blocks=3)
    Traceback (most recent call last):
    thinkalike.errors.ConfigError: ...
    """
    states_folder = in_home(checked_path("folder", folder))
    if layers is not None:
        check_whole_numbers("layers", layers, fewest=1)
    document_names = None
    if documents is not None:
        document_names = _document_names(documents)
    known_tokenizer: Tokenizer | None
    if isinstance(tokenizer, str):
        try:
            known_tokenizer = load_tokenizer(tokenizer, beside=states_folder)
        except ConfigError as error:
            raise ConfigError(f"tokenizer={shown(tokenizer)} cannot be read: {error}") from error
    else:
        known_tokenizer = tokenizer
    sent_prompts = None
    if prompts is not None:
        sent_prompts = read_prompt_file(in_home(checked_path("prompts", prompts)))
    index_folder(
        states_folder,
        model=model,
        blocks=blocks,
        tokenizer=known_tokenizer,
        bos=known_tokenizer is not None and puts_bos(known_tokenizer),
        revision=revision or "",
        layers=layers,
        prompts=sent_prompts,
        documents=document_names,
    )
    return states_folder


def _document_names(documents: object) -> list[int | str]:
    """Return the document of each row, as text or whole numbers of Python."""
    if hasattr(documents, "tolist"):  # an array, a tensor or a column
        documents = documents.tolist()
    is_text_or_set = isinstance(documents, str | bytes | Set)  # a set has no order
    if is_text_or_set or not isinstance(documents, Iterable):
        raise ConfigError(f"documents={shown(documents)} must be a list with an item for each row")
    names: list[int | str] = []
    for document in documents:
        if isinstance(document, bool) or not isinstance(document, str | Integral):
            raise ConfigError(f"documents has {shown(document)}: give texts or whole numbers")
        names.append(document if isinstance(document, str) else int(document))
    return names


def _reader(model: Model) -> Reader | FrozenModel:
    """Return what cuts a text into the tokens of a model; no weights of a named model are read."""
    if not isinstance(model, str | os.PathLike | ModelConfig):
        return as_frozen_model(model)
    config = configured(model, {})
    if isinstance(model, ModelConfig):
        name = model.called
    else:
        name = os.fspath(model)
    tokenizer = load_tokenizer(name, Path())
    bos = config.bos
    if bos is None:
        bos = puts_bos(tokenizer)
    return Reader(config.called, tokenizer, config.context or DEFAULT_CONTEXT, bos)


def _rows_of_text(
    texts: Text | None,
    reader: Reader | FrozenModel,
    words: int,
    context: int | None,
    field: str | None,
    group: str | None,
) -> list[TextRow]:
    """Return pieces of text of at least so many words, as measures of words draw them."""
    corpus = DEFAULT_CORPUS
    if isinstance(reader, FrozenModel) and reader.corpus:
        corpus = reader.corpus
    if context is not None:
        if not FEWEST_CONTEXT <= context <= reader.context:
            raise ConfigError(
                f"context={context} must be at least {FEWEST_CONTEXT}, and {reader.name} reads {reader.context} tokens"
            )
        reader = Reader(reader.name, reader.tokenizer, context, reader.bos_each_row)
    settings = {}
    if field is not None:
        settings["field"] = field
    if group is not None:
        settings["group"] = group
    if texts is None:
        texts = corpus
    data = dataclasses.replace(text_config(texts, settings), same_split=False)
    if data.source == "states":
        return _rows_of_folder(folder_of_rows(data, []), reader)
    pieces = drawn_pieces(data, [reader], words)
    rows = []
    for text, document in zip(pieces.texts, pieces.documents, strict=True):
        rows.append(TextRow(text, document))
    return rows


def _rows_of_folder(folder: StateFolder, reader: Reader | FrozenModel) -> list[TextRow]:
    """Return all rows of text of a folder of states, which another model is to read as they are."""
    rows = []
    for number, row in enumerate(folder.rows.rows):
        text = folder.text(number)
        tokens = len(reader.encoded(text)[0])
        if tokens > reader.context:
            raise DataError(
                f"{folder.name} has a row of {tokens} tokens of {reader.name}, "
                f"which reads {reader.context}: write shorter rows by thinkalike.write_states(context=...)"
            )
        rows.append(TextRow(text, row.document))
    return rows


def _rows_of_stimuli(stimuli: StimulusTable) -> list[TextRow]:
    """Return the different texts of a table of stimuli."""
    texts = read_stimuli(stimuli_config(stimuli, {})).texts
    return [TextRow(text, number) for number, text in enumerate(dict.fromkeys(texts))]
