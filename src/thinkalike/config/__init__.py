"""Configuration: nothing outside this package imports hydra or omegaconf."""

from thinkalike.config.compose import (
    completed,
    compose_job,
    jobs_of,
    keys_of,
    model_named,
    settings_of,
    train_config,
)
from thinkalike.config.entry_points import Made, command_line, entry_point, own_process
from thinkalike.config.inputs import (
    HOW_IT_RUNS,
    RUNS,
    DataConfig,
    ModelConfig,
    StimuliConfig,
)
from thinkalike.config.registry import (
    MEASURES,
    SUBJECTS,
    TASKS,
    instrument,
    instrument_of,
    loaded,
    measure_module,
    measure_schema,
)
from thinkalike.config.roots import PROCESSES, AnalyzeConfig, MeasureConfig, TrainConfig
from thinkalike.config.schema import Recipe, layers_of_sides, left_open, not_in_key, pairs_of_layers, ranged, relevant
from thinkalike.config.sources import CONF, options
from thinkalike.config.training import LoggerConfig, StitchConfig, TrainerConfig

__all__ = ["CONF", "HOW_IT_RUNS", "MEASURES", "PROCESSES", "RUNS", "SUBJECTS", "TASKS", "AnalyzeConfig",
           "DataConfig", "LoggerConfig", "Made", "MeasureConfig", "ModelConfig", "Recipe",
           "StimuliConfig", "StitchConfig", "TrainConfig", "TrainerConfig", "command_line",
           "completed", "compose_job", "entry_point", "instrument", "instrument_of", "jobs_of",
           "keys_of", "layers_of_sides", "left_open", "loaded", "measure_module", "measure_schema",
           "model_named", "not_in_key", "options", "own_process", "pairs_of_layers", "ranged",
           "relevant", "settings_of", "train_config"]  # fmt: skip
