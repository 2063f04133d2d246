"""What two models must have in common for a map between them: layers that exist, and text that both read."""

from __future__ import annotations

import logging
from typing import Any

from thinkalike.config import DataConfig, ModelConfig, pairs_of_layers
from thinkalike.data import Corpus, SourceText, read_corpus
from thinkalike.errors import ModelError
from thinkalike.models import FrozenModel, check_alignable, outline, tokenizer_fingerprint

log = logging.getLogger(__name__)


def check_stitchable(source: ModelConfig, target: ModelConfig, layers: Any, asked: str) -> None:
    """Refuse what is seen without any weights: a model that predicts no next token, or layers that do not exist.

    Args:
        asked: what stitches them, for the message.

    Raises:
        ConfigError: layers do not exist.
        ModelError: a model predicts no next token.
    """
    for each in (source, target):
        if outline(each).predicts not in (None, "next"):
            raise ModelError(
                f"{each.name} predicts no next token, and {asked} stitches models that do; choose one of them, or "
                "compare representations: python analyze.py measure=cka"
            )
    check_layer_pairs(source, target, layers)


def check_layer_pairs(source: ModelConfig, target: ModelConfig, layers: Any) -> None:
    """Refuse layers that do not exist before any weights are loaded, where configurations tell.

    Raises:
        ConfigError: there is no such layer.
    """
    mine, theirs = outline(source).layers, outline(target).layers
    if mine and theirs:
        pairs_of_layers(layers, mine, theirs)


def shared_text(data: DataConfig, source: FrozenModel, target: FrozenModel, fit_tokens: int) -> Corpus:
    """Read rows of the tokens of both models, or, where they cut a text differently, of each model's own.

    Raises:
        ModelError: the tokenizers differ so that tokens cannot be aligned.
        DataError: there is too little text.
    """
    context = min(source.context, target.context)
    if tokenizer_fingerprint(source.tokenizer) == tokenizer_fingerprint(target.tokenizer):
        return read_corpus(data, source.tokenizer, context, bos=source.bos_each_row, fit_tokens=fit_tokens)
    check_alignable(source, target)
    log.info("%s and %s have different tokenizers: their tokens are aligned", source.name, target.name)
    reader = SourceText(source.name, source.tokenizer, source.bos_each_row, source.context)
    bos = target.bos_each_row
    return read_corpus(data, target.tokenizer, context, bos=bos, fit_tokens=fit_tokens, source=reader)
