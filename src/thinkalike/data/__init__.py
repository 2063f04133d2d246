"""Data: documents of text and the rows of tokens that models read; stimuli and the features that describe them."""

from thinkalike.data.conllu import read_conllu
from thinkalike.data.grammar import controlled_sentences, derivations
from thinkalike.data.recordings import read_arrays
from thinkalike.data.sources import documents, identity
from thinkalike.data.stimuli import Codes, FeatureCorrelation, Stimuli, controlled_stimuli, from_sentences
from thinkalike.data.tables import read_table
from thinkalike.data.tokens import Corpus, TokenRows, held_out_texts, read_tokens, training_texts

__all__ = [
    "Codes",
    "Corpus",
    "FeatureCorrelation",
    "Stimuli",
    "TokenRows",
    "controlled_sentences",
    "controlled_stimuli",
    "derivations",
    "documents",
    "from_sentences",
    "held_out_texts",
    "identity",
    "read_arrays",
    "read_conllu",
    "read_table",
    "read_tokens",
    "training_texts",
]
