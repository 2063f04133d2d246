"""What measures of stimuli have in common: words in sentences, in models or in a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import pandas as pd

from thinkalike.config import AnalyzeConfig
from thinkalike.data import Stimuli, read_stimuli
from thinkalike.job import Instrument, fingerprints
from thinkalike.states import StimulusStates, recording_fingerprint
from thinkalike.tables import layer_rows


class OfStimuli(Instrument):
    """What measures of stimuli have in common: `activations` takes the place of `model`."""

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        stimuli = read_stimuli(config.stimuli)
        if not config.activations:
            return {"stimuli": stimuli, **fingerprints(config, ("model", "target"))}
        recording = {"activations": recording_fingerprint(config.activations)}
        return {"stimuli": stimuli, **recording, **fingerprints(self.narrowed(config), ("target",))}

    def narrowed(self, config: AnalyzeConfig) -> AnalyzeConfig:
        if not config.activations:
            return config
        without = copy(config)  # not `replace`, as a configuration that a user gives must have them
        without.model = None  # type: ignore[assignment]
        without.target = None if config.target == config.model else config.target  # type: ignore[assignment]
        return without


def rows_of_sides(sides: Sequence[StimulusStates]) -> pd.DataFrame:
    """Return model and layer of all layers of all sides."""
    return pd.concat([layer_rows(side.name, side.layers) for side in sides], ignore_index=True)


def stimuli_facts(stimuli: Stimuli) -> dict[str, Any]:
    """Return what the provenance of a result says of its stimuli."""
    return {"stimuli": {"source": stimuli.source, "count": len(stimuli), "fingerprint": stimuli.fingerprint()}}
