"""Configuration: it ends at the door. Nothing outside this package imports hydra or omegaconf."""

from thinkalike.config.compose import (
    from_yaml,
    measure_schema,
    options,
    register,
    resolve,
    to_yaml,
    train_config,
)
from thinkalike.config.doors import door, own_process
from thinkalike.config.doors.commands import command_line, command_words
from thinkalike.config.doors.sweeps import Made
from thinkalike.config.inputs import RUNS, DataConfig, ModelConfig, PairsConfig, PopulationConfig, StimuliConfig
from thinkalike.config.job import compose_job
from thinkalike.config.named import model_named
from thinkalike.config.registry import KINDS, MEASURES, PLUGGED, TASKS, measure_module
from thinkalike.config.roots import AnalyzeConfig, MeasureConfig, TrainConfig, as_dict
from thinkalike.config.schema import check_layers, not_in_key, pairs_of_layers, ranged, relevant
from thinkalike.config.several import as_target, jobs_of
from thinkalike.config.training import (
    SAE_STARTS,
    LoggerConfig,
    NLIConfig,
    PretrainConfig,
    SAEConfig,
    StitchConfig,
    TrainerConfig,
)
from thinkalike.config.words.folders import CONF
from thinkalike.config.words.spelling import check_option, check_overrides

__all__ = [
    "CONF",
    "KINDS",
    "MEASURES",
    "PLUGGED",
    "RUNS",
    "SAE_STARTS",
    "TASKS",
    "AnalyzeConfig",
    "DataConfig",
    "LoggerConfig",
    "Made",
    "MeasureConfig",
    "ModelConfig",
    "NLIConfig",
    "PairsConfig",
    "PopulationConfig",
    "PretrainConfig",
    "SAEConfig",
    "StimuliConfig",
    "StitchConfig",
    "TrainConfig",
    "TrainerConfig",
    "as_dict",
    "as_target",
    "check_layers",
    "check_option",
    "check_overrides",
    "command_line",
    "command_words",
    "compose_job",
    "door",
    "from_yaml",
    "jobs_of",
    "measure_module",
    "measure_schema",
    "model_named",
    "not_in_key",
    "options",
    "own_process",
    "pairs_of_layers",
    "ranged",
    "register",
    "relevant",
    "resolve",
    "to_yaml",
    "train_config",
]
