"""Measures of layer pairs of recordings, or of a recording and a model: they compare stimuli, and no tokens of text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from thinkalike.config import AnalyzeConfig
from thinkalike.instruments.layer_pairs.comparison import Comparison, Side
from thinkalike.instruments.of_stimuli import stimuli_facts
from thinkalike.job import Work
from thinkalike.memory import FirstBatch
from thinkalike.states.batches import StateBatches, array_batches
from thinkalike.states.stimuli import Compared, stimulus_states_of, without_massive


def comparison_of_stimuli(kind: Any, config: AnalyzeConfig, work: Work, watched: FirstBatch) -> Comparison:
    """Return the comparison of recordings, or of one with a model, on the same stimuli, by an instrument of a kind."""
    measure: Any = replace(config.measure, **kind.for_stimuli)
    stimuli = work.inputs["stimuli"]
    left, every = without_massive(config, stimuli, stimulus_states_of(config, stimuli, measure.embed))

    def batches_of(compared: Compared) -> StateBatches:
        states, groups = [compared.sides[0].states, compared.sides[-1].states], compared.stimuli.groups
        size, fewest = measure.tokens_per_batch, kind.fewest(measure)
        return array_batches(states, groups, rows_per_batch=size, fewest=fewest)

    batches = batches_of(left).beside(batches_of(every)) if every else batches_of(left)
    batches = replace(batches, facts={**batches.facts, **stimuli_facts(left.stimuli)})
    sides = [Side(each.name, each.layers, partial(dict, each.origin)) for each in left.sides]
    measure = replace(measure, batches=batches.batches)
    return kind.comparison(measure, [sides[0], sides[-1]], batches, work, watched)  # type: ignore[no-any-return]
