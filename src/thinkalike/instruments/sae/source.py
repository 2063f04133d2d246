"""Where a transferred start comes from: the autoencoders of another model, in a result of task=sae."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from thinkalike.config import LoggerConfig, ModelConfig, TrainConfig, model_named, options
from thinkalike.errors import ConfigError, ModelError, nearest
from thinkalike.instruments import instrument_of, run_job
from thinkalike.job import is_stored
from thinkalike.measures import AffineMap, SparseAutoencoder, load_sae
from thinkalike.models import FrozenModel, load_models, tokenizer_fingerprint
from thinkalike.stitches import load_stitch
from thinkalike.store import Result, open_result


def source_model(config: TrainConfig) -> ModelConfig:
    """Return the model whose autoencoders are carried over; nothing is trained.

    Raises:
        ConfigError: `sae.source` is neither a model nor a result of task=sae.
        StoreError: that result is damaged.
    """
    name = str(config.sae.source)
    if name in options("model"):
        return model_named(name, {"dtype": config.model.dtype, "device": config.model.device})
    return replace(ModelConfig(**_result(name).config["model"]), device=config.model.device)


def source_layer(config: TrainConfig) -> int:
    """Return the layer that autoencoders are carried over from."""
    own, name = config.sae, str(config.sae.source)
    if own.source_layer is not None or own.source is None or name in options("model"):
        return own.layer if own.source_layer is None else own.source_layer
    return int(_result(name).config["sae"]["layer"])


def source_jobs(config: TrainConfig) -> list[TrainConfig]:
    """Return the job that makes the autoencoders of a source that is a model, alone in a list."""
    if config.sae.source not in options("model"):
        return []
    none: dict[str, Any] = {"source": None, "source_layer": None, "stitch": None}
    plain = replace(config.sae, layer=source_layer(config), start="random", beside=[], rates=[], **none)
    return [replace(config, model=source_model(config), sae=plain, logger=LoggerConfig(kind="none"))]


def source_result(config: TrainConfig) -> Result:
    """Return the result that `sae.source` names; that of a model is made by the same recipe where the store lacks it.

    Raises:
        ConfigError: it is neither a model nor a result of task=sae, or that is of another layer or size.
        StoreError: that result is damaged.
    """
    name, own = str(config.sae.source), config.sae
    if jobs := source_jobs(config):
        (job,) = jobs
        if not is_stored(instrument_of(job), job):  # a source that is of no use is not trained
            source, target = load_models(job.model, config.model)
            check_tokenizers(source, target)
            if own.stitch:
                maps_of_stitch(own.stitch, (source, job.sae.layer), (target, own.layer))
        return run_job(job, shown_again=False)
    made = _result(name)
    for key, asked in {"layer": own.source_layer, "width": own.width, "activation": own.activation}.items():
        there = made.config["sae"][key]
        if asked not in (None, there):
            raise ConfigError(f"sae.source={name} has sae.{key}={there}, not {asked}; take that, or another source")
    if own.activation == "topk" and made.config["sae"]["k"] != own.k:
        raise ConfigError(
            f"sae.source={name} has sae.k={made.config['sae']['k']}, not {own.k}; take that, or another source"
        )
    return made


def _result(name: str) -> Result:
    """Return the result of task=sae in a folder."""
    if not Path(name).expanduser().is_dir():
        near = nearest(name, options("model"))
        raise ConfigError(f"sae.source={name} is neither a result of task=sae nor a model; {near}")
    made = open_result(name)
    if made.kind != "sae":
        raise ConfigError(f"sae.source={name} is a result of {made.kind}; give one of task=sae, or a model")
    return made


def maps_of_stitch(
    stitch: str, source: tuple[FrozenModel, int], target: tuple[FrozenModel, int]
) -> tuple[AffineMap, AffineMap]:
    """Return the maps of a stitching result in both directions.

    Args:
        source, target: the models with their layers.

    Raises:
        StoreError: there is no result, or it is damaged.
        StitchError: it holds no stitches, has no such pair, one direction only, or is of other weights.
    """
    pair, there = (source[1], target[1]), load_stitch(stitch)
    up, down = there[pair], there.back[pair]
    for site, (model, _) in ((up.source, source), (up.target, target)):
        site.check_model(model)
    return up.affine, down.affine


def saes_of(made: Result) -> list[SparseAutoencoder]:
    """Return the autoencoders of a result, one for each seed.

    Raises:
        ModelError: a file is missing or damaged.
    """
    return [load_sae(made.folder / seed_folder(seed)).sae for seed in range(made.config["sae"]["seeds"])]


def seed_folder(seed: int) -> str:
    """Return where in a result the autoencoder of a seed is, counted from 0: the first is in the folder itself."""
    return f"seed-{seed}" if seed else "."


def check_tokenizers(source: FrozenModel, model: FrozenModel) -> None:
    """Refuse models that cut text differently, as maps are fitted token by token.

    Raises:
        ModelError: they do.
    """
    if tokenizer_fingerprint(source.tokenizer) != tokenizer_fingerprint(model.tokenizer):
        raise ModelError(
            f"{source.name} and {model.name} have different tokenizers, and maps are fitted token by token; choose a "
            "source with the same one"
        )


def check_source(made: Result, model: FrozenModel) -> None:
    """Check that a model is the one that a result's autoencoders are of.

    Raises:
        ModelError: it has other weights.
    """
    found, stated = model.fingerprint(), made.provenance["models"][0]["weights"]
    if found != stated:
        raise ModelError(
            f"{made.folder} holds autoencoders of {model.name} with the weights {stated}, and these are {found}; train "
            "them anew"
        )
