"""Configuration: nothing outside this package imports hydra or omegaconf."""

from thinkalike.config.compose import check_option, compose_job, measure_schema, options, train_config
from thinkalike.config.entry_points import Made, command_line, command_words, entry_point, own_process
from thinkalike.config.inputs import (
    HOW_IT_RUNS,
    RUNS,
    DataConfig,
    ModelConfig,
    PairsConfig,
    PopulationConfig,
    StimuliConfig,
)
from thinkalike.config.models import as_target, jobs_of, model_named
from thinkalike.config.own_files import CONF
from thinkalike.config.registry import EXPERIMENTS, MEASURES, PLUGGED, SUBJECTS, TASKS, loaded, measure_module
from thinkalike.config.roots import PROCESSES, AnalyzeConfig, MeasureConfig, TrainConfig
from thinkalike.config.schema import layers_of_sides, not_in_key, pairs_of_layers, ranged, relevant
from thinkalike.config.training import LoggerConfig, NLIConfig, PretrainConfig, SAEConfig, StitchConfig, TrainerConfig

__all__ = ["CONF", "EXPERIMENTS", "HOW_IT_RUNS", "MEASURES", "PLUGGED", "PROCESSES", "RUNS", "SUBJECTS", "TASKS",
           "AnalyzeConfig", "DataConfig", "LoggerConfig", "Made", "MeasureConfig", "ModelConfig", "NLIConfig",
           "PairsConfig", "PopulationConfig", "PretrainConfig", "SAEConfig", "StimuliConfig", "StitchConfig",
           "TrainConfig", "TrainerConfig", "as_target", "check_option", "command_line", "command_words",
           "compose_job", "entry_point", "jobs_of", "layers_of_sides", "loaded", "measure_module", "measure_schema",
           "model_named", "not_in_key", "options", "own_process", "pairs_of_layers", "ranged", "relevant",
           "train_config"]  # fmt: skip
