"""The decorator that makes a script a door: compose, check, call; one line for an error that a user can act on."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from thinkalike.config.compose import CONF, SCHEMAS, check_overrides, register, resolve
from thinkalike.errors import ThinkalikeError


def door(name: str) -> Callable[[Callable[[Any], Any]], Callable[[], None]]:
    """Make a function of a configuration the main function of a script.

    The function gets a checked dataclass and returns the folder of its results, which becomes the last line of stdout.
    An error that a user can act on is one line on stderr and exit status 1.
    """
    schema = SCHEMAS[name]

    def decorate(job: Callable[[Any], Any]) -> Callable[[], None]:
        @functools.wraps(job)
        def task(composed: DictConfig) -> None:
            logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s", force=True)
            logging.getLogger("thinkalike").setLevel(logging.INFO)
            with _one_line_errors():
                print(f"results: {job(resolve(composed, schema))}", flush=True)

        def main() -> None:
            import hydra

            register()
            with _one_line_errors():
                check_overrides([word for word in sys.argv[1:] if "=" in word and not word.startswith("-")], schema)
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task)()

        return main

    return decorate


class _one_line_errors:
    """Turn an error that a user can act on into one line and exit status 1."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (ThinkalikeError, OmegaConfBaseException)) and "THINKALIKE_TRACEBACK" not in os.environ:
            print(f"error: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            sys.exit(1)
