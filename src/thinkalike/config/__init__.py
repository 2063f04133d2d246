"""Configuration: `thinkalike.config.compose` alone imports Hydra, to read command lines."""

from __future__ import annotations

from collections.abc import Iterable

from thinkalike.catalogue import MEASURES, SUBJECTS, TASKS, instrument, measure_entry
from thinkalike.config.groups import (
    CONF,
    measure_schema,
    model_named,
    options,
    part_named,
    settings_of,
)
from thinkalike.config.jobs import AnalyzeConfig, JobConfig, TrainConfig
from thinkalike.config.parts import (
    RUN_SETTINGS,
    DataConfig,
    LoggerConfig,
    MeasureConfig,
    ModelConfig,
    StimuliConfig,
    TrainerConfig,
)
from thinkalike.config.schema import Checked, RecipeJob, SettingValues, setting
from thinkalike.config.values import key_settings


def compose_job(entry_point: str, overrides: Iterable[str], **parts: Checked) -> JobConfig:
    """Return the configuration dataclass of a command line.

        compose_job("train", ["model=gpt2", "stitch=affine"])

    Args:
        entry_point: "train" or "analyze", the script whose command line it is.
        overrides: One setting each; a sweep is no single job.
        parts: Parts of the configuration that replace the composed ones: `model=ModelConfig(...)`.

    Raises:
        ConfigError: The script would refuse them; the message is the same.
        PluginError: A plugin that they name cannot be used.
    """
    from thinkalike.config.compose_jobs import compose_trusted_job  # imports Hydra

    return compose_trusted_job(entry_point, overrides, **parts)


__all__ = [
    "CONF",
    "MEASURES",
    "RUN_SETTINGS",
    "SUBJECTS",
    "TASKS",
    "AnalyzeConfig",
    "DataConfig",
    "JobConfig",
    "LoggerConfig",
    "MeasureConfig",
    "ModelConfig",
    "RecipeJob",
    "SettingValues",
    "StimuliConfig",
    "TrainConfig",
    "TrainerConfig",
    "compose_job",
    "instrument",
    "key_settings",
    "measure_entry",
    "measure_schema",
    "model_named",
    "options",
    "part_named",
    "setting",
    "settings_of",
]
