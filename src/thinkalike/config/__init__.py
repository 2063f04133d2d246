"""Configuration: it ends at the door. Nothing outside this package imports hydra or omegaconf."""

from thinkalike.config.compose import (
    CONF,
    check_overrides,
    compose_job,
    from_yaml,
    options,
    register,
    resolve,
    to_yaml,
)
from thinkalike.config.doors import door
from thinkalike.config.inference import NLIConfig, PairsConfig, PopulationConfig
from thinkalike.config.measures import (
    CKAConfig,
    MeasureConfig,
    MLEMConfig,
    PopulationMeasureConfig,
    RSAConfig,
    StimuliConfig,
)
from thinkalike.config.schemas import (
    AnalyzeConfig,
    DataConfig,
    LoggerConfig,
    ModelConfig,
    PretrainConfig,
    StitchConfig,
    TrainConfig,
    TrainerConfig,
    as_dict,
)

__all__ = [
    "CONF",
    "AnalyzeConfig",
    "CKAConfig",
    "DataConfig",
    "LoggerConfig",
    "MLEMConfig",
    "MeasureConfig",
    "ModelConfig",
    "NLIConfig",
    "PairsConfig",
    "PopulationConfig",
    "PopulationMeasureConfig",
    "PretrainConfig",
    "RSAConfig",
    "StimuliConfig",
    "StitchConfig",
    "TrainConfig",
    "TrainerConfig",
    "as_dict",
    "check_overrides",
    "compose_job",
    "door",
    "from_yaml",
    "options",
    "register",
    "resolve",
    "to_yaml",
]
