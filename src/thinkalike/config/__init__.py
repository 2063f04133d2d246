"""Configuration: nothing below this package and `cli` imports hydra or omegaconf."""

from thinkalike.config.compose import (
    CONF,
    command_line,
    completed,
    compose_job,
    keys_of,
    measure_schema,
    model_named,
    options,
    part_named,
    settings_of,
)
from thinkalike.config.parts import (
    HOW_IT_RUNS,
    PROCESSES,
    RUNS,
    AnalyzeConfig,
    DataConfig,
    LoggerConfig,
    MeasureConfig,
    ModelConfig,
    StimuliConfig,
    TrainConfig,
    TrainerConfig,
    chosen_scale,
)
from thinkalike.config.schema import left_open, not_in_key, ranged, relevant
from thinkalike.plugins import MEASURES, SUBJECTS, TASKS, instrument, instrument_of, measure_module

__all__ = ["CONF", "HOW_IT_RUNS", "MEASURES", "PROCESSES", "RUNS", "SUBJECTS", "TASKS", "AnalyzeConfig",
           "DataConfig", "LoggerConfig", "MeasureConfig", "ModelConfig", "StimuliConfig",
           "TrainConfig", "TrainerConfig", "chosen_scale", "command_line", "completed", "compose_job", "instrument",
           "instrument_of", "keys_of", "left_open", "measure_module", "measure_schema", "model_named",
           "not_in_key", "options", "part_named", "ranged", "relevant", "settings_of"]  # fmt: skip
