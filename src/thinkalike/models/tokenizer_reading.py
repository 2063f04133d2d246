"""Reading the tokenizer of a checkpoint."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.config import ModelConfig
from thinkalike.digests import PROBES, read_json
from thinkalike.errors import ModelError
from thinkalike.files import is_folder
from thinkalike.models.checkpoints import is_gguf, located
from thinkalike.models.gguf import cut_as_stated
from thinkalike.models.module_facts import puts_bos
from thinkalike.models.plausible import PLAIN_SENTENCE
from thinkalike.models.tokenizer_growth import check_growth

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


def read_tokenizer(config: ModelConfig, place: str) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a checkpoint.

    A checkpoint must have one: transformers would make up one without words.

    Args:
        config: The configuration of the model.
        place: The folder, repository or GGUF file of the checkpoint.

    Raises:
        ModelError: There is no tokenizer that transformers reads.
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
        check_growth(Path(file))
    tokenizer = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=revision)
        tokenizer = without_dropout(tokenizer, config.called)
    except ValueError as error:
        if "backend tokenizer" not in str(error):
            raise
    if tokenizer is not None:
        names |= {*getattr(tokenizer, "vocab_files_names", {}).values()}
        if any(cached_file(place, name, **optional) for name in sorted(names, reverse=True)):
            if file:
                tokenizer = _as_its_file(tokenizer, file, config, place)
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
    """Return the tokenizer of a GGUF file.

    Beside a tokenizer.json, transformers would read that instead.
    """
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, file.name)
        link.symlink_to(file.absolute())
        tokenizer = PreTrainedTokenizerFast.from_pretrained(**located(str(link)))
        return cut_as_stated(tokenizer, file)


def _as_its_file(
    tokenizer: PreTrainedTokenizerBase, file: str, config: ModelConfig, place: str
) -> PreTrainedTokenizerBase:
    """Return a tokenizer that cuts texts as tokenizer.json says.

    If its class does not, a warning says so, and it is read without that class.
    """
    from transformers import PreTrainedTokenizerFast

    if _cuts_as(tokenizer, file):
        return tokenizer
    revision = config.revision or "main"
    plain = without_dropout(PreTrainedTokenizerFast.from_pretrained(place, revision=revision))
    reason = "as other files of the tokenizer add to it"
    if _cuts_as(plain, file):
        reason = "which is read"
    log.warning(
        "%s: %s cuts texts otherwise than tokenizer.json, %s",
        config.called,
        type(tokenizer).__name__,
        reason,
    )
    return plain


def _warn_of_bos(tokenizer: PreTrainedTokenizerBase, settings: Path, config: ModelConfig) -> None:
    """Say that a setting of BOS has no effect on the tokenizer."""
    stated = read_json(settings).get("add_bos_token")
    if config.bos is None and stated in (True, False) and stated != puts_bos(tokenizer):
        log.warning(
            "%s: add_bos_token=%s has no effect on its tokenizer; model.bos decides",
            config.called,
            stated,
        )


def without_dropout(
    tokenizer: PreTrainedTokenizerBase, called: str = ""
) -> PreTrainedTokenizerBase:
    """Set the dropout of a tokenizer of BPE to none.

    With dropout the same text would have different ids at every call.

    Args:
        tokenizer: The tokenizer.
        called: What a warning calls the model; "": there is none.
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
    """Return the share of merges that a tokenizer of BPE leaves out at random.

    It is None if there is no such setting.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return getattr(getattr(backend, "model", None), "dropout", None)


def _cuts_as(tokenizer: PreTrainedTokenizerBase, file: str) -> bool:
    """Return whether a tokenizer cuts texts as its file says.

    A class of transformers may overrule that.
    """
    from tokenizers import Tokenizer

    of_file = Tokenizer.from_file(file)
    if hasattr(of_file.model, "dropout"):
        of_file.model.dropout = None
    of_file.no_truncation()
    of_file.no_padding()
    of_file.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    for text in (PLAIN_SENTENCE, " 2023", f"a{tokenizer.eos_token}b", *PROBES):
        if list(tokenizer(text)["input_ids"]) != of_file.encode(text).ids:
            return False
    return True
