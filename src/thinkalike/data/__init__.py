"""Data: text and the rows of tokens that models read; stimuli and their features; pairs for language inference."""

from thinkalike.data.conllu import read_conllu
from thinkalike.data.from_config import WHOLE, part_name, parts_of, read_corpus, read_pairs, read_stimuli, reported_part
from thinkalike.data.grammar import controlled_sentences, derivations
from thinkalike.data.nli import MNLI, Pairs, hub_pairs, read_hans, read_mnli
from thinkalike.data.nli_batches import EncodedPairs, PairBatch, batches, encode
from thinkalike.data.nli_templates import nli_challenge, nli_training
from thinkalike.data.recordings import read_arrays
from thinkalike.data.sources import documents
from thinkalike.data.sources import identity as text_fingerprint
from thinkalike.data.stimuli import Codes, FeatureCorrelation, Stimuli, controlled_stimuli, from_sentences
from thinkalike.data.tables import read_table
from thinkalike.data.tokens import Corpus, TokenRows, held_out_texts, read_tokens, training_texts

__all__ = [
    "MNLI",
    "WHOLE",
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
    "nli_challenge",
    "nli_training",
    "part_name",
    "parts_of",
    "read_arrays",
    "read_conllu",
    "read_corpus",
    "read_hans",
    "read_mnli",
    "read_pairs",
    "read_stimuli",
    "read_table",
    "read_tokens",
    "reported_part",
    "text_fingerprint",
    "training_texts",
]
