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
    LoggerConfig,
    MeasureConfig,
    ModelConfig,
    StimuliConfig,
    TrainConfig,
    TrainerConfig,
)
from thinkalike.config.schema import left_open, not_in_key, ranged, relevant
from thinkalike.plugins import MEASURES, SUBJECTS, TASKS, instrument, measure_entry

__all__ = ["CONF", "MEASURES", "RUNS", "SUBJECTS", "TASKS", "AnalyzeConfig", "DataConfig", "LoggerConfig",
           "MeasureConfig", "ModelConfig", "StimuliConfig", "TrainConfig", "TrainerConfig", "compose_inner_job",
           "compose_job", "compose_open_job", "instrument", "left_open", "measure_entry", "measure_schema",
           "model_named", "not_in_key", "options", "part_named", "ranged", "relevant", "settings_of"]  # fmt: skip
