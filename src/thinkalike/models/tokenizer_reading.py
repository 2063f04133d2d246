"""Reading the tokenizer of a checkpoint."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.digests import PROBES, read_json
from thinkalike.errors import ModelError
from thinkalike.files import is_folder
from thinkalike.models.checkpoints import is_gguf, path_arguments
from thinkalike.models.gguf import split_words_as_stated
from thinkalike.models.module_facts import puts_bos
from thinkalike.models.plausible import PLAIN_SENTENCE
from thinkalike.models.tokenizer_growth import check_growth_of_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


def read_tokenizer(config: ModelConfig, place: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a checkpoint, without dropout.

    A checkpoint must have one: transformers would make up one without words. A revision in a
    folder may have its tokenizer in the folder above.

    Args:
        config: The configuration of the model.
        place: The folder, repository or GGUF file of the checkpoint.

    Raises:
        ModelError: There is no tokenizer that transformers reads, or its replacements could make a
            text endlessly long.
    """
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    if is_gguf(place):
        return _tokenizer_of_gguf(Path(place))
    revision = config.revision or "main"
    optional: dict[str, object] = {
        "revision": revision,
        "_raise_exceptions_for_missing_entries": False,
    }
    names = {"tokenizer.json"}
    file = cached_file(place, "tokenizer.json", **optional)
    if file:
        check_growth_of_texts(Path(file))
    tokenizer = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            place, revision=revision, trust_remote_code=False
        )
        tokenizer = without_dropout(tokenizer, config.called)
    except ValueError as error:
        # This is what transformers says where there is no tokenizer.
        if "backend tokenizer" not in str(error):
            raise
    if tokenizer is not None:
        # It may be one that transformers made up, unless a file of its class is there.
        names |= {*getattr(tokenizer, "vocab_files_names", {}).values()}
        if any(cached_file(place, name, **optional) for name in sorted(names, reverse=True)):
            if file:
                tokenizer = _tokenizer_as_in_file(tokenizer, file, config, place)
            settings = cached_file(place, "tokenizer_config.json", **optional)
            if settings:
                _warn_of_bos(tokenizer, Path(settings), config)
            return tokenizer

    if config.revision and is_folder(place):  # a run may keep its tokenizer beside its checkpoints
        return read_tokenizer(replace(config, revision=None), str(Path(place).parent))
    files = ", ".join(sorted(names))
    raise ModelError(
        f"{config.called}: {place} has no tokenizer that transformers reads ({files})"
    )


def _tokenizer_of_gguf(file: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a GGUF file, which splits texts into words as the file states.

    Raises:
        ModelError: transformers does not know the rule by which the file splits texts.
    """
    from transformers import PreTrainedTokenizerFast

    # If there is a tokenizer.json beside the GGUF file, transformers reads that instead. So the
    # GGUF file is read through a link in an empty folder.
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, file.name)
        link.symlink_to(file.absolute())
        tokenizer = PreTrainedTokenizerFast.from_pretrained(**path_arguments(str(link)))
        return split_words_as_stated(tokenizer, file)


def _tokenizer_as_in_file(
    tokenizer: PreTrainedTokenizerBase, file: str, config: ModelConfig, place: str
) -> PreTrainedTokenizerBase:
    """Return a tokenizer that encodes texts as the file tokenizer.json of its checkpoint states.

    The class of transformers that read the tokenizer may overrule the file. Then the tokenizer is
    read again without this class, and a warning is logged. It may still differ from the file, as
    other files beside tokenizer.json may add tokens; the warning then says this instead.

    Args:
        tokenizer: The tokenizer as its class in transformers reads it.
        file: The path of tokenizer.json.
        config: The configuration of the model.
        place: The folder or repository of the checkpoint.
    """
    from transformers import PreTrainedTokenizerFast

    if _encodes_as_in_file(tokenizer, file):
        return tokenizer
    revision = config.revision or "main"
    plain = without_dropout(PreTrainedTokenizerFast.from_pretrained(place, revision=revision))
    consequence = "other files of the tokenizer add tokens, which are kept"
    if _encodes_as_in_file(plain, file):
        consequence = "texts are cut as tokenizer.json says"
    log.warning(
        "%s: %s cuts texts otherwise than tokenizer.json; %s",
        config.called,
        type(tokenizer).__name__,
        consequence,
    )
    return plain


def _warn_of_bos(tokenizer: PreTrainedTokenizerBase, settings: Path, config: ModelConfig) -> None:
    """Warn if the entry add_bos_token of tokenizer_config.json has no effect on a tokenizer.

    The entry has no effect if the tokenizer puts BOS before a text and the entry says no, or the
    other way round. There is no warning if the entry is missing, or if the setting `model.bos` is
    given, which decides in any case.

    Args:
        tokenizer: The tokenizer.
        settings: The path of tokenizer_config.json.
        config: The configuration of the model.
    """
    should_add_bos = read_json(settings).get("add_bos_token")
    is_stated = should_add_bos in (True, False)
    if config.bos is None and is_stated and should_add_bos != puts_bos(tokenizer):
        log.warning(
            "%s: add_bos_token=%s has no effect on its tokenizer; "
            f"set {named_setting('model.bos')} to decide",
            config.called,
            should_add_bos,
        )


def without_dropout(
    tokenizer: PreTrainedTokenizerBase, called: str = ""
) -> PreTrainedTokenizerBase:
    """Switch off the dropout of a BPE tokenizer, in place, and return the tokenizer.

    Dropout leaves out merges at random, so that a text has other ids at every call. A warning
    that names the model is logged, unless its name `called` is "".
    """
    dropout = dropout_of(tokenizer)
    if dropout:
        tokenizer.backend_tokenizer.model.dropout = None
        if called:
            log.warning(
                "%s: dropout=%g of its tokenizer is left out: with it a text has other ids each "
                "time",
                called,
                dropout,
            )
    return tokenizer


def dropout_of(tokenizer: PreTrainedTokenizerBase) -> float | None:
    """Return the dropout of a BPE tokenizer: the share of merges that it leaves out at random.

    It is None if the tokenizer has no such setting, or if dropout is switched off.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return getattr(getattr(backend, "model", None), "dropout", None)


def _encodes_as_in_file(tokenizer: PreTrainedTokenizerBase, file: str) -> bool:
    """Return whether a tokenizer encodes some texts as a tokenizer.json does by itself.

    The class of the tokenizer may overrule the file. The texts are a sentence, and ones on which
    such classes differ, such as with spaces or special tokens. Dropout, truncation and padding,
    which the file may state, are switched off for the comparison.

    Args:
        tokenizer: The tokenizer, as transformers read it.
        file: The path of tokenizer.json.
    """
    from tokenizers import Tokenizer

    file_tokenizer = Tokenizer.from_file(file)
    if hasattr(file_tokenizer.model, "dropout"):
        file_tokenizer.model.dropout = None
    file_tokenizer.no_truncation()
    file_tokenizer.no_padding()
    splits_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    file_tokenizer.encode_special_tokens = splits_special_tokens
    for text in (PLAIN_SENTENCE, " 2023", f"a{tokenizer.eos_token}b", *PROBES):
        if list(tokenizer(text)["input_ids"]) != file_tokenizer.encode(text).ids:
            return False
    return True
