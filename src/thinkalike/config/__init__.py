"""Configuration: nothing below this package and `cli` imports hydra or omegaconf."""

from thinkalike.config.compose import (
    CONF,
    compose_inner_job,
    compose_job,
    compose_open_job,
    measure_schema,
    model_named,
    options,
    part_named,
    settings_of,
)
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
from thinkalike.plugins import MEASURES, SUBJECTS, TASKS, instrument, measure_module

__all__ = ["CONF", "MEASURES", "RUNS", "SUBJECTS", "TASKS", "AnalyzeConfig", "DataConfig", "JobConfig", "LoggerConfig",
           "MeasureConfig", "ModelConfig", "SettingValues", "StimuliConfig", "TrainConfig", "TrainerConfig",
           "compose_inner_job", "compose_job", "compose_open_job", "instrument", "key_settings", "measure_module",
           "measure_schema", "model_named", "options", "part_named", "setting", "settings_of"]  # fmt: skip
