"""Configuration: `thinkalike.config.compose` alone imports Hydra, to read command lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thinkalike.config.groups import CONF, measure_schema, model_named, options, part_named, settings_of
from thinkalike.config.parts import (
    RUNS,
    AnalyzeConfig,
    DataConfig,
    JobConfig,
    LoggerConfig,
    MeasureConfig,
    ModelConfig,
    StimuliConfig,
    TrainConfig,
    TrainerConfig,
)
from thinkalike.config.schema import SettingValues, key_settings, setting
from thinkalike.plugins import MEASURES, SUBJECTS, TASKS, instrument, measure_entry


def compose_job(entry_point: str, overrides: Iterable[str], **parts: Any) -> Any:
    """Return the configuration dataclass of a command line: `compose_job("train", ["model=gpt2", "stitch=affine"])`.

    Args:
        entry_point: "train" or "analyze", the script whose command line it is.
        overrides: one setting each; a sweep is no single job.
        parts: parts of the configuration that take the place of the composed ones: `model=ModelConfig(...)`.

    Raises:
        ConfigError: the script would refuse them; the message is the same.
        PluginError: a plugin that they name cannot be used.
    """
    from thinkalike.config.compose import compose_trusted_job  # imports Hydra

    return compose_trusted_job(entry_point, overrides, **parts)


__all__ = ["CONF", "MEASURES", "RUNS", "SUBJECTS", "TASKS", "AnalyzeConfig", "DataConfig", "JobConfig", "LoggerConfig",
           "MeasureConfig", "ModelConfig", "SettingValues", "StimuliConfig", "TrainConfig", "TrainerConfig",
           "compose_job", "instrument", "key_settings", "measure_entry", "measure_schema", "model_named", "options",
           "part_named", "setting", "settings_of"]  # fmt: skip
