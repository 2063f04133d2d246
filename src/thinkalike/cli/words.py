"""Checks of a command line before Hydra reads it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib.metadata import version

from thinkalike.config.compose import get_args_parser, read_overrides
from thinkalike.config.overrides import check_given_once
from thinkalike.errors import ConfigError, listed, nearest, refuse_words, short

SHELLS = ("bash", "fish", "zsh")  # for which Hydra can complete words
COMPLETION_ACTIONS = ("install", "uninstall")


def options_first(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with its options before its overrides.

    argparse takes no other order.

    Raises:
        ConfigError: an option is not known, or lacks its value.
    """
    parser = get_args_parser()
    for action in parser._actions:
        if isinstance(action, argparse._VersionAction):
            action.version = f"thinkalike {version('thinkalike')}"  # in place of Hydra's
    parser.error = refuse_words  # type: ignore[method-assign]
    known, unknown = parser.parse_known_args(list(words))
    for word in unknown:
        if word.startswith("-"):
            flags = [flag for action in parser._actions for flag in action.option_strings]
            raise ConfigError(f"{short(word)} is not an option; {nearest(word, flags)}")
    overrides = [*known.overrides, *unknown]

    # The value of an option may be the same word as an override; it comes first, so each override
    # is removed where it occurs last.
    options = list(words)
    for word in reversed(overrides):
        options.reverse()
        options.remove(word)
        options.reverse()
    return [*options, *overrides]


def without_overrides(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the words of a command line that asks for help, which is the same text for every job.

    Hydra would compose the job first, and the settings of a measure are in a module that imports
    torch.
    """
    return list(words[: len(words) - len(overrides)])


def check_flags(words: argparse.Namespace) -> None:
    """Check the options that begin with a dash, at some of which Hydra ends in a traceback."""
    if words.resolve and not (words.cfg or words.help):
        raise ConfigError("--resolve goes with --cfg job|hydra|all or --help; add one of them")
    if words.package and not words.cfg:
        raise ConfigError(
            f"--package={short(words.package)} goes with --cfg job|hydra|all; add it, or leave "
            "--package out"
        )
    if words.experimental_rerun:
        # Hydra unpickles this file, and a pickle runs whatever code its author chose.
        raise ConfigError(
            "--experimental-rerun is not available, as its file could run code; "
            "repeat the command line of the job"
        )
    _check_one_mode(words)
    _check_not_empty(words)
    _check_config_path(words.config_path)
    _check_named_config(words)
    if words.shell_completion:
        _check_completion(words.overrides)


def _check_one_mode(words: argparse.Namespace) -> None:
    modes = {
        "--run": words.run,
        "--multirun": words.multirun,
        "--cfg": words.cfg,
        "--info": words.info,
        "--shell-completion": words.shell_completion,
    }
    chosen = [name for name, value in modes.items() if value]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} do not go together; leave {chosen[-1]} out")


def _check_not_empty(words: argparse.Namespace) -> None:
    """Check that no option is an empty text, which Hydra ignores or takes for a folder of its own.

    A variable of the shell that is not set gives such a text.
    """
    options = {
        "--config-path": words.config_path,
        "--config-dir": words.config_dir,
        "--config-name": words.config_name,
    }
    for option, value in options.items():
        if value is not None and not value.strip():
            raise ConfigError(f"{option} has an empty value; give one, or leave {option} out")


def _check_config_path(folder: str | None) -> None:
    """Check that --config-path is a whole path; Hydra takes others from this module's folder."""
    if not folder or os.path.isabs(folder) or "://" in folder:
        return
    whole_path = os.path.abspath(os.path.expanduser(folder))
    raise ConfigError(
        f"--config-path={short(folder)} must be a whole path, {whole_path}; "
        "--config-dir takes a short one, and leaves the folder of this package in place"
    )


def _check_named_config(words: argparse.Namespace) -> None:
    """Check that a config.yaml of the user's is read, and not only its folder."""
    if not words.config_dir or words.config_name:
        return
    file = os.path.join(words.config_dir, "config.yaml")
    if os.path.isfile(file):
        raise ConfigError(
            f"{short(file)} is not read without its name; "
            "add --config-name config, or give the file another name"
        )


def _check_completion(overrides: Sequence[str]) -> None:
    if len(overrides) == 1:
        action, _, shell = overrides[0].partition("=")
        if action == "query" and shell in SHELLS:  # see `completion`
            raise ConfigError(
                "query= is what a shell asks, with the line in COMP_LINE; give install=SHELL"
            )
        if action in COMPLETION_ACTIONS and shell in SHELLS:
            return
    raise ConfigError(
        f"--shell-completion takes one word: install=SHELL or uninstall=SHELL; {listed(SHELLS)}"
    )


def check_words_given_once(words: argparse.Namespace) -> None:
    """Check that a command line gives nothing twice; the last one would silently be taken."""
    parser = argparse.ArgumentParser(add_help=False)
    for action in get_args_parser()._actions:
        has_one_value = action.nargs is None and action.option_strings
        if has_one_value:
            parser.add_argument(*action.option_strings, dest=action.dest, action="append")
    options, _ = parser.parse_known_args()
    for name, values in vars(options).items():
        if values and len(values) > 1:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} is given twice, as {short(values[0])} and {short(values[1])}; "
                "give it once"
            )
    check_given_once(read_overrides(words.overrides))
