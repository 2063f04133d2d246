"""Data: text and the rows of tokens that models read; stimuli and their features; pairs for language inference."""

from thinkalike.data.conllu import read_conllu
from thinkalike.data.grammar import controlled_sentences, derivations
from thinkalike.data.nli import Pairs, hub_pairs, read_hans, read_mnli
from thinkalike.data.nli_batches import EncodedPairs, PairBatch, batches, encode
from thinkalike.data.nli_templates import nli_challenge, nli_training
from thinkalike.data.recordings import read_arrays
from thinkalike.data.sources import documents, identity
from thinkalike.data.stimuli import Codes, FeatureCorrelation, Stimuli, controlled_stimuli, from_sentences
from thinkalike.data.tables import read_table
from thinkalike.data.tokens import Corpus, TokenRows, held_out_texts, read_tokens, training_texts

__all__ = [
    "Codes",
    "Corpus",
    "EncodedPairs",
    "FeatureCorrelation",
    "PairBatch",
    "Pairs",
    "Stimuli",
    "TokenRows",
    "batches",
    "controlled_sentences",
    "controlled_stimuli",
    "derivations",
    "documents",
    "encode",
    "from_sentences",
    "held_out_texts",
    "hub_pairs",
    "identity",
    "nli_challenge",
    "nli_training",
    "read_arrays",
    "read_conllu",
    "read_hans",
    "read_mnli",
    "read_table",
    "read_tokens",
    "training_texts",
]
