"""From a configuration to stimuli."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from thinkalike.config import StimuliConfig
from thinkalike.data.conllu import read_conllu
from thinkalike.data.stimuli import Stimuli, chosen, controlled_stimuli, crossed_stimuli
from thinkalike.data.tables import read_table


def read_stimuli(config: StimuliConfig) -> Stimuli:
    """Return the stimuli that a configuration describes; the last ones are kept as long as their file stays as it is.

    Raises:
        DataError: a file is missing, damaged or lacks something, or there are too few stimuli for the sample.
    """
    return _stimuli(json.dumps(asdict(config)), changed_at(config.path))


@lru_cache(maxsize=2)
def _stimuli(settings: str, _: int | None) -> Stimuli:
    config = StimuliConfig(**json.loads(settings))
    if config.kind in ("controlled", "crossed"):
        is_crossed, count = config.kind == "crossed", config.sentences or 400
        stimuli = crossed_stimuli() if is_crossed else controlled_stimuli(count, config.seed, config.grammar)
        names = chosen(stimuli.source, config.features, stimuli.names)
        stimuli = replace(stimuli, features=stimuli.features[names], kinds=config.kinds or {})
    elif config.kind == "conllu":
        stimuli = read_conllu(str(config.path), features=config.features, kinds=config.kinds)
    else:
        stimuli = read_table(str(config.path), features=config.features, kinds=config.kinds, columns=config.columns)
    return stimuli.sample(config.sample, config.seed, config.balance) if config.sample else stimuli


def changed_at(path: str | None) -> int | None:
    """Return when a file was last changed, in ns, if there is one."""
    return Path(path).stat().st_mtime_ns if path and Path(path).exists() else None
