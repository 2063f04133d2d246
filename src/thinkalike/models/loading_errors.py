"""Why a model cannot be loaded, in one line, whatever a library says of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, ResourceError, ThinkalikeError, one_line, panicked
from thinkalike.hub import cause_of
from thinkalike.models.checkpoints import named_folder

# The remedy where memory is exhausted.
TAKE_LESS = (
    "take a smaller model, model.dtype=bfloat16, or a device with more memory (model.device)"
)


@contextlib.contextmanager
def explaining_loading_errors(config: ModelConfig) -> Iterator[None]:
    """Turn errors of the libraries that load models into a ModelError or a ResourceError.

    Exhausted memory becomes a ResourceError. Errors of this package pass as they are, and so does
    what ends the process, such as KeyboardInterrupt.

    Args:
        config: The configuration of the model that is loaded while the context is open.
    """
    _quieten()
    try:
        yield
    except ThinkalikeError:
        raise
    except BaseException as error:
        # A hook of a model in memory may raise SystemExit, which is no reason to end the process.
        if not (isinstance(error, Exception | SystemExit) or panicked(error)):
            raise
        from thinkalike.memory import out_of_memory_error  # imports torch

        folder = named_folder(config)
        origin = folder or config.hub_id
        attempt = f"cannot load model={config.called} from {origin}"
        if origin is None:
            attempt = f"cannot load {config.called}, a model in memory"
        memory_error = out_of_memory_error(error)
        if memory_error:
            raise ResourceError(f"{attempt}: {_with_class(memory_error)}; {TAKE_LESS}") from error
        cause = _with_class(error) if folder else cause_on_hub(config, error)
        raise ModelError(f"{attempt}: {cause}") from error


def cause_on_hub(config: ModelConfig, error: BaseException) -> str:
    """Return why a repository of the hub cannot be read, in one line."""
    return cause_of(error, str(config.hub_id), config.revision) or _with_class(error)


def _with_class(error: BaseException) -> str:
    """Return the message of an error in one line, after the name of its class."""
    return f"{type(error).__name__}: {one_line(error)}"


def _quieten() -> None:
    """Keep the libraries from writing to the screen: only a job's own output belongs there.

    Variables of the environment that the user has set win.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    verbosity = os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    # transformers reads the variable once, when it is imported.
    loaded = sys.modules.get("transformers.utils.logging")
    if verbosity == "error" and loaded:
        loaded.set_verbosity_error()
        loaded.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Else transformers asks the hub to convert .bin files.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()
