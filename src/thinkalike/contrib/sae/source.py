"""Where a transferred start comes from: another model's autoencoders, in a result of task=sae."""

from __future__ import annotations

from dataclasses import fields, replace

from thinkalike.config import LoggerConfig, ModelConfig, model_named, options
from thinkalike.contrib.sae.config import SAEJob
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.errors import ConfigError, ModelError
from thinkalike.instruments import instrument_of, run_job
from thinkalike.job.planning import is_stored
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_models
from thinkalike.store import Result, open_result


def source_model(config: SAEJob) -> ModelConfig:
    """Return the configuration of the source model of a job.

    The autoencoders of the source model are mapped to the model of the job. `sae.source` is the
    name of the source model, or that of a stored result of task=sae, which has its configuration.
    The source model runs on the device of the job's model.
    """
    name = str(config.sae.source)
    if name in options("model"):  # the names of all models that have a configuration
        settings = {"dtype": config.model.dtype, "device": config.model.device}
        return model_named(name, settings)
    stored_settings = _open_sae_result(name).config["model"]
    # A result may have settings of a subclass of `ModelConfig`, which are left out.
    known_keys = {field.name for field in fields(ModelConfig)}
    known_settings = {key: value for key, value in stored_settings.items() if key in known_keys}
    return replace(ModelConfig(**known_settings), device=config.model.device)


def source_jobs(config: SAEJob) -> list[SAEJob]:
    """Return the job that must run first if `sae.source` names a model, in a list of one.

    First weights can be taken from autoencoders of another model, the source. The job trains these
    from random first weights alone and with one learning rate, with the same settings otherwise.
    If `sae.source` names a result, whose job is done, or nothing, the list is empty.

    Raises:
        ConfigError: `sae.source` names a model and `sae.tokens` is 0. The source's autoencoders
            would not be trained either, and random ones would be mapped.
    """
    if config.sae.source not in options("model"):
        return []
    if config.sae.tokens == 0:
        raise ConfigError(
            f"sae.tokens=0 trains nothing, not even the autoencoders of sae.source="
            f"{config.sae.source}; train these by task=sae, and give the folder of that result as "
            "sae.source"
        )
    layer = config.sae.source_layer
    if layer is None:
        layer = config.sae.layer
    settings = replace(
        config.sae,
        layer=layer,
        start="random",
        beside=[],  # no further kinds of first weights
        lr_multiples=[],  # no further learning rates
        source=None,
        source_layer=None,
    )
    logger = LoggerConfig(kind="none")
    return [replace(config, model=source_model(config), sae=settings, logger=logger)]


def source_result(config: SAEJob) -> Result:
    """Return the result that has the source model's autoencoders, which are mapped to the model.

    If `sae.source` names a model, its autoencoders are trained first unless they are stored.
    Otherwise it names a stored result.

    Raises:
        ConfigError: The named result is not of task=sae, or its autoencoders are of another layer,
            size or activation than the settings say.
        ModelError: The source model has a different tokenizer.
    """
    jobs = source_jobs(config)
    if jobs:
        (job,) = jobs  # at most one: the training of the source's autoencoders
        if not is_stored(instrument_of(job), job):
            # Raises an error before the training, and not after it, if the source is of no use.
            check_same_tokenizer(*load_models(job.model, config.model))
        return run_job(job, shown=False)

    name = str(config.sae.source)
    result = _open_sae_result(name)
    # What the result must have been trained with; None: every value is accepted.
    expected_settings = {
        "layer": config.sae.source_layer,
        "width": config.sae.width,
        "activation": config.sae.activation,
        "k": config.sae.active,
    }
    for key, expected in expected_settings.items():
        stored = result.config["sae"][key]
        if expected is not None and expected != stored:
            raise ConfigError(
                f"sae.source={name} has sae.{key}={stored}, not {expected}; "
                "take that, or another source"
            )
    return result


def _open_sae_result(name: str) -> Result:
    """Return a stored result of task=sae.

    Raises:
        ConfigError: The result is of another kind.
    """
    result = open_result(name)
    if result.kind != "sae":
        raise ConfigError(
            f"sae.source={name} is a result of {result.kind}; give one of task=sae, or a model"
        )
    return result


def seed_folder(seed: int) -> str:
    """Return the folder of the autoencoder of a seed, relative to the folder of its result.

    Seeds are counted from 0. The autoencoder of seed 0 is in the folder of the result itself.
    """
    if seed == 0:
        return "."
    return f"seed-{seed}"


def check_source(result: Result, model: FrozenModel) -> None:
    """Check that a stored result's autoencoders were trained on a model with the same weights.

    Raises:
        ModelError: The fingerprint of the weights differs from that in the result's provenance.
    """
    fingerprint = model.fingerprint()
    # The first model of the provenance is the one whose states the autoencoders reconstruct.
    stored_fingerprint = result.provenance["models"][0]["weights"]
    if fingerprint != stored_fingerprint:
        raise ModelError(
            f"{result.folder} holds autoencoders of {model.name} with the weights "
            f"{stored_fingerprint}, not {fingerprint}"
        )
