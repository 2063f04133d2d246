"""States: what models, or a user's recordings, hold of the same tokens, words, pairs of sentences or stimuli."""

from thinkalike.states.batches import StateBatch, StateBatches, array_batches, pair_batches, text_batches
from thinkalike.states.runs import ModelRuns
from thinkalike.states.stimuli import (
    StimulusStates,
    names_of,
    numbered,
    recording_fingerprint,
    stimulus_states,
    stimulus_states_of,
)
from thinkalike.states.tokens import counted, site_numbers, sites, token_states
from thinkalike.states.words import Pieces, last_tokens, pieces, word_forms, word_states, words_of

__all__ = [
    "ModelRuns",
    "Pieces",
    "StateBatch",
    "StateBatches",
    "StimulusStates",
    "array_batches",
    "counted",
    "last_tokens",
    "names_of",
    "numbered",
    "pair_batches",
    "pieces",
    "recording_fingerprint",
    "site_numbers",
    "sites",
    "stimulus_states",
    "stimulus_states_of",
    "text_batches",
    "token_states",
    "word_forms",
    "word_states",
    "words_of",
]
