"""The configuration of a job, from the words of a command line without the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from omegaconf import flag_override

from thinkalike.config.compose import SCHEMAS, measures_of, models_of, register, resolve, with_default_target
from thinkalike.config.overrides import at_home, folders_named, parse_overrides
from thinkalike.config.words.folders import CONF
from thinkalike.config.words.plain import COMPOSING_ERRORS, one_line
from thinkalike.config.words.spelling import check_overrides
from thinkalike.errors import ConfigError, one_of


def compose_job(door: str, overrides: Iterable[str]) -> Any:
    """Return the configuration dataclass of a command line: `compose_job("train", ["model=gpt2", "stitch=affine"])`.

    Args:
        door: "train" or "analyze", the script whose command line it is.
        overrides: its words, one setting each; a sweep is no single job.

    Raises:
        ConfigError: the door would refuse them; the message is the same.
        PluginError: a plugin that they name cannot be used.
    """
    one_of("door", door, SCHEMAS)
    words = list(overrides)
    if isinstance(overrides, str) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{overrides!r} must be a list of words, one setting each, such as ['seed=1']")
    overrides = folders_named(at_home(words))
    parsed = parse_overrides(overrides)
    check_overrides(overrides, SCHEMAS[door], sweeps=False)
    overrides = with_default_target(door, overrides)
    register(measures_of(parsed) if door == "analyze" else (), models_of(parsed))
    try:
        return resolve(_composed(door, overrides), SCHEMAS[door], overrides)
    except COMPOSING_ERRORS as error:
        raise ConfigError(one_line(error)) from error


def _composed(door: str, overrides: Sequence[str]) -> Any:
    """Compose what Hydra's own `compose` would: that works on a global state, which a job of Hydra's may be using."""
    from hydra import version
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.types import RunMode

    version.setbase("1.3")
    loader = ConfigLoaderImpl(create_config_search_path(str(CONF)))
    composed = loader.load_configuration(door, [*overrides], run_mode=RunMode.RUN, from_shell=False)
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        del composed["hydra"]
    return composed
