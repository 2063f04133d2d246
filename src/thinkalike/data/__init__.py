"""Data: text and the rows of tokens that models read; stimuli and their features; pairs for language inference."""

from thinkalike.data.contrasts.contrasts import BOUNDARY, Contrasts, Prompt
from thinkalike.data.contrasts.grammar import CONTRASTS, grammar_contrasts
from thinkalike.data.contrasts.tables import read_contrasts
from thinkalike.data.contrasts.tokens import continuations
from thinkalike.data.from_config import WHOLE, part_name, parts_of, read_corpus, read_pairs, read_stimuli, reported_part
from thinkalike.data.grammar.sentences import controlled_sentences, crossed_sentences, derivations
from thinkalike.data.inference.encoding import EncodedPairs, PairBatch, batches, encode
from thinkalike.data.inference.made import nli_challenge, nli_training
from thinkalike.data.inference.pairs import HANS, MNLI, Pairs
from thinkalike.data.inference.published import hub_pairs, read_hans, read_mnli
from thinkalike.data.stimuli.conllu import read_conllu
from thinkalike.data.stimuli.controlled import controlled_stimuli, crossed_stimuli, from_sentences
from thinkalike.data.stimuli.correlation import FeatureCorrelation
from thinkalike.data.stimuli.recordings import Recording, read_arrays, read_recording
from thinkalike.data.stimuli.stimuli import Codes, Stimuli
from thinkalike.data.stimuli.tables import read_table
from thinkalike.data.text.documents import document_fingerprint, documents, text_fingerprint
from thinkalike.data.text.paired import alignment_shares
from thinkalike.data.text.rows import Corpus, Layout, PairedRows, TokenRows
from thinkalike.data.text.split import held_out_texts, training_texts
from thinkalike.data.text.tokens import read_tokens
from thinkalike.data.text.two_tokenizers import SourceText

__all__ = [
    "BOUNDARY",
    "CONTRASTS",
    "HANS",
    "MNLI",
    "WHOLE",
    "Codes",
    "Contrasts",
    "Corpus",
    "EncodedPairs",
    "FeatureCorrelation",
    "Layout",
    "PairBatch",
    "PairedRows",
    "Pairs",
    "Prompt",
    "Recording",
    "SourceText",
    "Stimuli",
    "TokenRows",
    "alignment_shares",
    "batches",
    "continuations",
    "controlled_sentences",
    "controlled_stimuli",
    "crossed_sentences",
    "crossed_stimuli",
    "derivations",
    "document_fingerprint",
    "documents",
    "encode",
    "from_sentences",
    "grammar_contrasts",
    "held_out_texts",
    "hub_pairs",
    "nli_challenge",
    "nli_training",
    "part_name",
    "parts_of",
    "read_arrays",
    "read_conllu",
    "read_contrasts",
    "read_corpus",
    "read_hans",
    "read_mnli",
    "read_pairs",
    "read_recording",
    "read_stimuli",
    "read_table",
    "read_tokens",
    "reported_part",
    "text_fingerprint",
    "training_texts",
]
