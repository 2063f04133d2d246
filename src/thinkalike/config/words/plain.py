"""What the errors of Hydra, OmegaConf and YAML say, in one line."""

from __future__ import annotations

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from thinkalike.errors import first_line

COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)


def one_line(error: BaseException) -> str:
    """Return what an error says in one line of printable characters."""
    said = first_line(error) or type(error).__name__
    if isinstance(error, HydraException) and error.__cause__:
        said = f"{said} {first_line(error.__cause__)}"
    if isinstance(error, MissingConfigException) and "submitit" in str(error.missing_cfg_file):
        said += " pip install 'thinkalike[slurm]'"
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        said = f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    key = getattr(error, "full_key", None)
    said = f"{key}: {said}" if key and key not in said else said
    return "".join(each if each.isprintable() else " " for each in said)
