"""What the errors of Hydra and OmegaConf say of a command line, in plain words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from thinkalike.config.compose import options as known_options
from thinkalike.errors import first_line, nearest

COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)
SLURM = "'thinkalike[slurm]'"
PLUGINS = {  # of Hydra, by the option that is missing: what a user names, and what is to be installed
    "hydra/launcher/submitit_slurm": ("hydra/launcher=slurm", SLURM),
    "hydra/launcher/submitit_local": ("hydra/launcher=submitit_local", SLURM),
    "hydra/launcher/joblib": ("hydra/launcher=joblib", "hydra-joblib-launcher"),
    "hydra/launcher/ray": ("hydra/launcher=ray", "hydra-ray-launcher"),
    "hydra/launcher/rq": ("hydra/launcher=rq", "hydra-rq-launcher"),
    "hydra/sweeper/optuna": ("hydra/sweeper=optuna", "hydra-optuna-sweeper"),
    "hydra/sweeper/ax": ("hydra/sweeper=ax", "hydra-ax-sweeper"),
    "hydra/sweeper/nevergrad": ("hydra/sweeper=nevergrad", "hydra-nevergrad-sweeper"),
}
MUST = (  # what stands behind "Error merging override seed=abc:", and what the value must be
    (r"could not be converted to Integer", "must be a whole number"),
    (r"could not be converted to Float", "must be a number"),
    (r"is not a valid bool", "must be true or false"),
    (r"is not Optional|NoneType is not a subclass", "must not be null"),
    (r"Cannot convert '.*' to string", "must be a word, and not a list or a dictionary"),
    (r"is not a ListConfig, list or tuple|Cannot merge DictConfig with ListConfig", "must be a list, such as [a,b]"),
    (r"Cannot assign .* to Dict|Cannot merge DictConfig|is not a DictConfig", "must be of the form {name:value}"),
    (r"is not a subclass of", "is no value: it has settings of its own"),
    (r"does not support deletion", "cannot be left out: every setting has a value"),
    (r"not in struct|Key '.*' not in", "is not a setting"),
)
SAID = (  # whole messages
    (r"Error parsing override '([^']*)' missing EQUAL.*", r"cannot read '\1': it has no value; write key=value"),
    (r".*ConfigError raised while resolving interpolation: (.*)", r"\1"),
    (r"(?:(\S+): )?Interpolation key '([^']*\.[^']*)' not found.*", r"\1: ${\2} refers to no setting"),
    (
        r"(?:(\S+): )?Interpolation key '([^']*)' not found.*",
        r"\1: ${\2} refers to no setting; an environment variable is ${oc.env:\2}",
    ),
    (
        r"(?:(\S+): )?Unsupported interpolation type (\S+).*",
        r"\1: ${\2:...} is not known; an environment variable is ${oc.env:NAME}",
    ),
    (r"(?:(\S+): )?.*Environment variable '([^']*)' not found.*", r"\1: the environment variable \2 is not set"),
    (r"(\S+): .*[Rr]ecursi\w+.*", r"\1 refers to itself; give it a value"),
    (r".*[Rr]ecursi\w+.*", r"a setting refers to itself; give it a value"),
    (r"(?:(\S+): )?While dereferencing interpolation '(.*?)': .*", r"\1: \2 gives no value that fits"),
    (
        r".* does not support sweep type : INTERVAL.*",
        r"interval(...) is for sweepers that search: hydra/sweeper=optuna",
    ),
    (r"(?:(\S+): )?TypeError raised while resolving interpolation: (.*)", r"\1: ${...} takes other values: \2"),
    (r"(?:(\S+): )?Missing mandatory value.*", r"\1 needs a value"),
    (r"Could not override '([^']*)'.*override one of ([^?]*)\?.*", r"'\1' is not known; there is: \2"),
    (r"Could not override '([^']*)'.*", r"'\1' is not a setting"),
    (r"Multiple values for (\S+?)\. .*", r"\1 is there already: write \1=... without +"),
    (r"Could not append to config\. An item is already at '([^']*)'.*", r"\1 is there already: write \1=... without +"),
    (
        r"Could not delete from config\. '?([^' ]*)'? does not exist.*|Could not delete '([^']*)'.*",
        r"\1\2 is not there",
    ),
    (r".*Key '([^']*)' (?:not in|is not in).*full_key: (\S+).*", r"'\2' is not a setting"),
    (r"Cannot find primary config '([^']*)'.*", r"there is no configuration \1.yaml; give its folder by --config-dir"),
)


LISTS = {"must be a number": "must be a list of numbers", "must be a whole number": "must be a list of whole numbers"}


def in_plain_words(text: str) -> str:
    """Return what an error says, in one line; one that is not known as it is."""
    text = " ".join(text.split())
    if merging := re.fullmatch(r"Error merging override (\S+?=.*?|~\S+?): (.*)", text):
        word, why = merging.groups()
        for pattern, must in MUST:
            if re.search(pattern, why):
                is_item = word.endswith("]") and "'list'" not in why  # what is wrong is inside of the list
                return f"{word} {LISTS.get(must, must) if is_item else must}"
        return f"{word}: {why}"
    for pattern, said in SAID:
        if found := re.fullmatch(pattern, text):
            return found.expand(said).removeprefix(": ").removeprefix(" ")
    for pattern, must in MUST:  # of a configuration that was composed: "seed: Value ..."
        if (found := re.fullmatch(r"(\S+): (.*)", text)) and re.search(pattern, found[2]):
            return f"{found[1]} {must}"
    return text


def one_line(error: BaseException) -> str:
    """Return what an error says in one line."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:  # Hydra lists all that there is
        named_by = re.match(r"In '((?!hydra/).+?/.+?)':", str(error))  # a file of a group whose defaults name it
        said = _missing(str(error.missing_cfg_file), error.options or [])
        return f"the defaults of {named_by[1]}: {said}" if named_by else said
    if isinstance(error, HydraException):  # says what it could not do; its cause says why
        cause = next(iter(str(error.__cause__ or "").splitlines()), "")  # below stands where in a schema it was
        return in_plain_words(f"{error}: {cause}".strip().removesuffix(":"))
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, YAMLError):
        return f"a file of YAML cannot be read: {' '.join(str(error).split())[:300]}"
    first = first_line(error) or type(error).__name__
    if not isinstance(error, OmegaConfBaseException):
        return first
    key = getattr(error, "full_key", None)
    return in_plain_words(f"{key}: {first}" if key else first)


def _missing(name: str, options: Sequence[str]) -> str:
    """Return that there is no option of such a name, and which there are or how it is to be had."""
    group, _, option = name.rpartition("/")
    if name in PLUGINS:
        return "{} needs a plugin: pip install {}".format(*PLUGINS[name])
    more = {known.rpartition("/")[2] for known in PLUGINS if known.startswith(f"{group}/")}
    return f"{group}={option} is not known; {nearest(option, more.union(options or known_options(group)))}"
