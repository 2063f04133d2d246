"""The global state of a process: what a public function changes for its job, it restores at the end.

    with isolated():
        ...  # seeds torch, sets its threads, silences libraries, fills the environment

Random states, warnings filters and the environment belong to the whole process and not to a
thread. So jobs of several threads run one after another, which costs little: torch computes each
of them on all cores. A process that is forked while a thread runs a job has the other threads'
locks and none of these threads; see `renewed_in_forked_processes`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch.overrides import TorchFunctionMode

# modules of libraries that announce what they do
TRANSFORMERS_LOGGING = "transformers.utils.logging"
PROGRESS_BARS = ("huggingface_hub.utils.tqdm", "datasets.utils.tqdm")

# the kinds of devices whose operations torch may cast by itself
CASTING_DEVICES = ("cpu", "cuda", "mps", "xpu")

_job_lock = threading.RLock()
_thread_of_job: int | None = None  # the identifier of the thread that runs a job
_call_id = ""


def renewed_in_forked_processes(renew: Callable[[], object]) -> None:
    """Call a function in every process that is forked from this one, before anything else there.

    A forked process has a copy of each lock, but only the thread that forked. A lock that another
    thread held would be held for ever, so that its owner replaces it here.
    """
    if hasattr(os, "register_at_fork"):  # which Windows lacks, as no process is forked there
        os.register_at_fork(after_in_child=renew)


def _forget_job_of_other_thread() -> None:
    """Let a forked process run jobs, unless its only thread is the one that runs the job."""
    global _job_lock, _thread_of_job
    if _thread_of_job != threading.get_ident():
        _job_lock = threading.RLock()
        _thread_of_job = None


renewed_in_forked_processes(_forget_job_of_other_thread)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run a job alone, and restore all global state when it ends, also by an error.

    Inside another `isolated` this does nothing, so that a job that needs the result of another one
    is not reseeded by it.
    """
    global _thread_of_job, _call_id
    with _job_lock:
        if _thread_of_job is not None:
            yield
            return
        _thread_of_job = threading.get_ident()
        _call_id = secrets.token_hex(8)
        try:
            with contextlib.ExitStack() as restored:
                for state in GLOBAL_STATES:
                    # A library that a command has not imported yet has no state.
                    if state.library is None or state.library in sys.modules:
                        restored.enter_context(state.restored())
                yield
        finally:
            _thread_of_job = None


def id_of_this_call() -> str:
    """Return a random text that identifies the call of the package that is running.

    A call is a public function or a command, with all that it calls: it lasts as long as the
    outermost `isolated` is open. The next call has another text.
    """
    return _call_id


@contextlib.contextmanager
def without_modes_of_torch() -> Iterator[None]:
    """Leave autocast, inference mode and default device of the caller, whose results are others."""
    import torch

    with contextlib.ExitStack() as modes:
        modes.enter_context(without_default_device())
        for device in CASTING_DEVICES:
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        yield


@contextlib.contextmanager
def without_default_device() -> Iterator[None]:
    """Leave the default device of the caller, so that tensors are made where the code says.

    It may be set by `torch.set_default_device` or by `with torch.device(...)`. Entering the device
    "cpu" would not do: then `torch.as_tensor` moves tensors of a GPU to the CPU. So the mode behind
    it is taken off torch's stack of modes; the caller's other modes stay.
    """
    import torch
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils import _device

    modes = _get_current_function_mode_stack()
    kept_modes = [mode for mode in modes if not isinstance(mode, _device.DeviceContext)]
    global_context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    current_device = _device.CURRENT_DEVICE
    try:
        if len(kept_modes) < len(modes):
            _set_modes(kept_modes)
            torch._GLOBAL_DEVICE_CONTEXT.device_context = None
            _device.CURRENT_DEVICE = None
        yield
    finally:
        if _get_current_function_mode_stack() != modes:
            _set_modes(modes)
            torch._GLOBAL_DEVICE_CONTEXT.device_context = global_context
            _device.CURRENT_DEVICE = current_device


def _set_modes(modes: Sequence[TorchFunctionMode]) -> None:
    """Replace torch's stack of modes that see each call of a function, from the outermost on."""
    from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

    for _ in _get_current_function_mode_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


@contextlib.contextmanager
def same_random_states_of_python() -> Iterator[None]:
    """Restore the state of Python's random numbers."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def same_random_states_of_numpy() -> Iterator[None]:
    """Restore the state of NumPy's global random numbers."""
    import numpy as np

    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


@contextlib.contextmanager
def same_random_states_of_torch() -> Iterator[None]:
    """Restore the states of torch's random numbers, on the CPU and on all GPUs."""
    import torch

    cpu_state = torch.get_rng_state()
    cpu_seed = torch.initial_seed()
    gpu_states = None
    if torch.cuda.is_initialized():
        gpu_states = torch.cuda.get_rng_state_all()
    try:
        yield
    finally:
        torch.set_rng_state(cpu_state)
        if gpu_states is not None:
            torch.cuda.set_rng_state_all(gpu_states)
        elif torch.cuda.is_available():
            # GPUs that nobody had used would have begun with the seed of the CPU.
            torch.cuda.manual_seed_all(cpu_seed)


@contextlib.contextmanager
def same_settings_of_torch() -> Iterator[None]:
    """Restore torch's settings: threads, dtype, gradients, determinism and cuDNN."""
    import torch
    from torch.backends import cudnn

    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    has_gradients = torch.is_grad_enabled()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn_is_enabled = cudnn.enabled
    cudnn_benchmarks = cudnn.benchmark
    cudnn_is_deterministic = cudnn.deterministic
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(has_gradients)
        # The call imports torch's compiler, which takes seconds.
        if (
            torch.are_deterministic_algorithms_enabled() != is_deterministic
            or torch.is_deterministic_algorithms_warn_only_enabled() != only_warns
        ):
            torch.use_deterministic_algorithms(is_deterministic, warn_only=only_warns)
        cudnn.enabled = cudnn_is_enabled
        cudnn.benchmark = cudnn_benchmarks
        cudnn.deterministic = cudnn_is_deterministic


@contextlib.contextmanager
def matmul_precision(precision: str = "highest") -> Iterator[None]:
    """Set the precision of products of float32 matrices in the body, and restore the user's.

    Torch has a common precision, and since 2.9 one for each backend, which the user may set instead
    (`torch.backends.cuda.matmul.fp32_precision`). Torch refuses to read the common one while a
    backend has a lower one.

    Args:
        precision: "highest", "high" or "medium", as `torch.set_float32_matmul_precision` takes it.
    """
    import torch

    precisions_of_backends = []
    for backend in (torch.backends.cuda, torch.backends.mkldnn):
        products: Any = getattr(backend, "matmul", None)
        if hasattr(products, "fp32_precision"):
            precisions_of_backends.append((products, _own_precision(products)))
            products.fp32_precision = "ieee"
    common_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)  # of the backends as well
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(common_precision)
        for products, own_precision in precisions_of_backends:
            products.fp32_precision = own_precision


def _own_precision(products: Any) -> str:
    """Return the precision that a backend of torch has itself; "none": it follows a general one.

    Torch shows the precision that applies, so the backend is set to "none" to see the general one.

    Args:
        products: What torch has for the products of a backend, such as `torch.backends.cuda.matmul`.
    """
    applied_precision: str = products.fp32_precision
    products.fp32_precision = "none"
    general_precision = products.fp32_precision
    return "none" if applied_precision == general_precision else applied_precision


@contextlib.contextmanager
def same_environment() -> Iterator[None]:
    """Restore the environment's variables, the import path and the working folder."""
    variables = dict(os.environ)
    import_path = sys.path[:]
    folder = _working_folder()
    try:
        yield
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        sys.path[:] = import_path
        if folder is not None and _working_folder() != folder:
            os.chdir(folder)


def _working_folder() -> str | None:
    """Return the working folder, or None where it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


class LoggerState(NamedTuple):
    """The settings of a logger."""

    logger: logging.Logger
    level: int
    handlers: list[logging.Handler]
    filters: list[object]
    propagate: bool

    def restore(self) -> None:
        if self.logger.level != self.level:  # setting it empties a cache
            self.logger.setLevel(self.level)
        self.logger.handlers[:] = self.handlers
        self.logger.filters[:] = self.filters  # type: ignore[assignment]
        self.logger.propagate = self.propagate


@contextlib.contextmanager
def same_logging() -> Iterator[None]:
    """Restore levels and handlers of all existing loggers.

    A library that is imported meanwhile adds loggers of its own.
    """
    states = []
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        if isinstance(logger, logging.Logger):
            states.append(
                LoggerState(
                    logger,
                    logger.level,
                    logger.handlers[:],
                    [*logger.filters],
                    logger.propagate,
                )
            )
    try:
        yield
    finally:
        for state in states:
            state.restore()


@contextlib.contextmanager
def same_signal_handlers() -> Iterator[None]:
    """Restore the handlers of signals, which only the main thread can set."""
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if handler is not None:  # None is a handler that was set outside of Python
                handlers[number] = handler
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@contextlib.contextmanager
def same_announcements() -> Iterator[None]:
    """Let libraries of Hugging Face show the same warnings and progress bars after a job as before."""
    import huggingface_hub.constants  # noqa: F401 (it must read the user's environment, not the job's)

    verbosity = None
    if TRANSFORMERS_LOGGING in sys.modules:
        verbosity = _verbosity()
    was_silent = {}
    for library in PROGRESS_BARS:
        if library in sys.modules:
            was_silent[library] = _has_no_bars(library)
    try:
        yield
    finally:
        if TRANSFORMERS_LOGGING in sys.modules:
            _restore_verbosity(verbosity)
        for library in PROGRESS_BARS:
            if library in sys.modules:
                _restore_bars(library, was_silent.get(library, False))


class Verbosity(NamedTuple):
    """What transformers says."""

    level: int
    has_bars: bool


def _verbosity() -> Verbosity:
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    return Verbosity(level, transformers_logging.is_progress_bar_enabled())


def _restore_verbosity(earlier: Verbosity | None) -> None:
    """Set what transformers says; None: the job imported it first, so it gets its own defaults."""
    from transformers.utils import logging as transformers_logging

    if earlier is None:
        if "TRANSFORMERS_VERBOSITY" in os.environ:  # set by the user, and the job obeyed it
            return
        earlier = Verbosity(transformers_logging.WARNING, has_bars=True)
    transformers_logging.set_verbosity(earlier.level)
    if earlier.has_bars == transformers_logging.is_progress_bar_enabled():
        return
    if earlier.has_bars:
        transformers_logging.enable_progress_bar()
    else:
        transformers_logging.disable_progress_bar()


def _has_no_bars(library: str) -> bool:
    """Return whether a library hides the progress bars of its downloads."""
    return bool(sys.modules[library].are_progress_bars_disabled())


def _restore_bars(library: str, was_silent: bool) -> None:
    """Let a library show or hide the progress bars of its downloads as before the job."""
    module = sys.modules[library]
    is_silent = _has_no_bars(library)
    with warnings.catch_warnings():
        # A variable of the user's environment takes precedence, and the library warns of it.
        warnings.simplefilter("ignore")
        if is_silent and not was_silent:
            module.enable_progress_bars()
        elif was_silent and not is_silent:
            module.disable_progress_bars()


class GlobalState(NamedTuple):
    """A global state, and what restores it.

    Attributes:
        restored: opens a context at the end of which the state is restored.
        library: the library whose state it is; None: it is Python's own.
    """

    restored: Callable[[], AbstractContextManager[None]]
    library: str | None = None


@contextlib.contextmanager
def same_warnings() -> Iterator[None]:
    """Restore the filters of warnings."""
    with warnings.catch_warnings():
        yield


GLOBAL_STATES = (
    # This is restored last, when the environment is the user's again.
    GlobalState(same_announcements, "torch"),
    GlobalState(same_random_states_of_python),
    GlobalState(same_random_states_of_numpy, "numpy"),
    GlobalState(same_random_states_of_torch, "torch"),
    GlobalState(same_settings_of_torch, "torch"),
    GlobalState(matmul_precision, "torch"),
    GlobalState(without_modes_of_torch, "torch"),
    GlobalState(same_environment),
    GlobalState(same_logging),
    GlobalState(same_signal_handlers),
    GlobalState(same_warnings),
)
