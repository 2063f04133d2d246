"""Data: documents of text, and the rows of tokens that models read."""

from thinkalike.data.sources import documents, identity
from thinkalike.data.tokens import Corpus, TokenRows, held_out_texts, read_tokens, training_texts

__all__ = ["Corpus", "TokenRows", "documents", "held_out_texts", "identity", "read_tokens", "training_texts"]
