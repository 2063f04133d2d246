"""Configuration: nothing below this package and `cli` imports hydra or omegaconf."""

from thinkalike.config.compose import (
    CONF,
    command_line,
    completed,
    compose_job,
    jobs_of,
    keys_of,
    model_named,
    options,
    settings_of,
)
from thinkalike.config.parts import (
    HOW_IT_RUNS,
    RUNS,
    DataConfig,
    LoggerConfig,
    ModelConfig,
    StimuliConfig,
    StitchConfig,
    TrainerConfig,
)
from thinkalike.config.roots import (
    MEASURES,
    PROCESSES,
    SUBJECTS,
    TASKS,
    AnalyzeConfig,
    MeasureConfig,
    TrainConfig,
    instrument,
    instrument_of,
    measure_module,
    measure_schema,
)
from thinkalike.config.schema import Recipe, left_open, not_in_key, ranged, relevant

__all__ = ["CONF", "HOW_IT_RUNS", "MEASURES", "PROCESSES", "RUNS", "SUBJECTS", "TASKS", "AnalyzeConfig",
           "DataConfig", "LoggerConfig", "MeasureConfig", "ModelConfig", "Recipe", "StimuliConfig",
           "StitchConfig", "TrainConfig", "TrainerConfig", "command_line", "completed", "compose_job",
           "instrument", "instrument_of", "jobs_of", "keys_of", "left_open", "measure_module",
           "measure_schema", "model_named", "not_in_key", "options", "ranged", "relevant",
           "settings_of"]  # fmt: skip
