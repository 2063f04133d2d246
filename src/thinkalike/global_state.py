"""Leaves the process of a notebook as it was: what a public function changes for its job, it puts back at the end.

    with isolated():
        ...  # seeds torch, sets its threads, silences libraries, fills the environment

Random states, warnings filters and the environment belong to the whole process and not to a thread. So jobs of several
threads run one after another, which costs little, as torch computes each of them on all cores.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_ALONE = threading.RLock()
_is_open = False


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run a job with no other beside it, and restore all global state when it ends, also by an error.

    Inside another `isolated` this does nothing, so that a job that needs another one is not reseeded by it.
    """
    global _is_open
    with _ALONE:
        if _is_open:
            yield
            return
        _is_open = True
        try:
            with contextlib.ExitStack() as restored:
                for library, keep in KINDS_OF_STATE:
                    if library is None or library in sys.modules:  # a command imports them when it needs them
                        restored.enter_context(keep())
                yield
        finally:
            _is_open = False


@contextlib.contextmanager
def same_random_states_of_python() -> Iterator[None]:
    """Give Python's random numbers the state back that they had, when the context ends."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def same_random_states_of_numpy() -> Iterator[None]:
    """Give NumPy's global random numbers the state back that they had."""
    import numpy as np

    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


@contextlib.contextmanager
def same_random_states_of_torch() -> Iterator[None]:
    """Give torch's random numbers the states back that they had, on the CPU and on all GPUs."""
    import torch

    cpu, seed = torch.get_rng_state(), torch.initial_seed()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        elif torch.cuda.is_available():  # GPUs that nobody had used would have begun with the seed of the CPU
            torch.cuda.manual_seed_all(seed)


@contextlib.contextmanager
def same_settings_of_torch() -> Iterator[None]:
    """Give torch's settings back: threads, precision, dtype, gradients, deterministic algorithms and cuDNN."""
    import torch
    from torch.backends import cudnn

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    convolutions = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=only_warns)
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = convolutions


@contextlib.contextmanager
def same_environment() -> Iterator[None]:
    """Give the environment's variables, the path of imports and the working folder back."""
    variables, path, folder = dict(os.environ), sys.path[:], _working_folder()
    try:
        yield
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        sys.path[:] = path
        if folder is not None and _working_folder() != folder:
            os.chdir(folder)


def _working_folder() -> str | None:
    """Return the working folder, or None where it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def same_logging() -> Iterator[None]:
    """Restore levels and handlers of the loggers that there are; a library that is imported meanwhile adds its own."""
    existing = [logging.root, *logging.root.manager.loggerDict.values()]
    loggers = [each for each in existing if isinstance(each, logging.Logger)]
    before = [(each, each.level, each.handlers[:], each.filters[:], each.propagate) for each in loggers]
    try:
        yield
    finally:
        for logger, level, handlers, filters, propagate in before:
            if logger.level != level:  # setting it empties a cache
                logger.setLevel(level)
            logger.handlers[:] = handlers
            logger.filters[:] = filters
            logger.propagate = propagate


@contextlib.contextmanager
def same_signal_handlers() -> Iterator[None]:
    """Restore the handlers of signals, which only the main thread can set; None is one that was set outside Python."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = signal.valid_signals() if is_main else ()
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@contextlib.contextmanager
def same_announcements() -> Iterator[None]:
    """Let libraries of Hugging Face say afterwards what they said before: warnings, and bars of downloads."""
    import huggingface_hub.constants  # noqa: F401 (which reads the user's environment, and not that of a job)

    before = {name: read() for name, (read, _) in ANNOUNCEMENTS.items() if name in sys.modules}
    try:
        yield
    finally:
        for name, (_, write) in ANNOUNCEMENTS.items():
            if name in sys.modules:
                write(before.get(name))


def _verbosity() -> tuple[int, bool]:
    from transformers.utils import logging as transformers_logging

    return transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()


def _set_verbosity(before: tuple[int, bool] | None) -> None:
    """Set what transformers says; None: it was first imported by the job, so that it gets its own defaults."""
    from transformers.utils import logging as transformers_logging

    if before is None and "TRANSFORMERS_VERBOSITY" in os.environ:  # by the user, whom the job obeyed
        return
    verbosity, has_bars = before or (transformers_logging.WARNING, True)
    transformers_logging.set_verbosity(verbosity)
    if has_bars != transformers_logging.is_progress_bar_enabled():
        (transformers_logging.enable_progress_bar if has_bars else transformers_logging.disable_progress_bar)()


def _bars_of(library: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return what reads and what writes whether a library hides the progress bars of its downloads."""

    def is_silent() -> bool:
        return bool(sys.modules[library].are_progress_bars_disabled())

    def write(was_silent: bool | None) -> None:
        functions = sys.modules[library]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a variable of the user's environment says wins, with a warning
            if is_silent() and not was_silent:
                functions.enable_progress_bars()
            elif was_silent and not is_silent():
                functions.disable_progress_bars()

    return is_silent, write


ANNOUNCEMENTS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "transformers.utils.logging": (_verbosity, _set_verbosity),
    "huggingface_hub.utils.tqdm": _bars_of("huggingface_hub.utils.tqdm"),
    "datasets.utils.tqdm": _bars_of("datasets.utils.tqdm"),
}
KINDS_OF_STATE: tuple[tuple[str | None, Callable[[], contextlib.AbstractContextManager[Any]]], ...] = (
    ("torch", same_announcements),  # the last to end, when the environment is the user's again
    (None, same_random_states_of_python),
    ("numpy", same_random_states_of_numpy),
    ("torch", same_random_states_of_torch),
    ("torch", same_settings_of_torch),
    (None, same_environment),
    (None, same_logging),
    (None, same_signal_handlers),
    (None, warnings.catch_warnings),
)  # beside each the library that it is a state of
