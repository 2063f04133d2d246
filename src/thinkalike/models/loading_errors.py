"""Why a model cannot be loaded, in one line, whatever a library says of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, ResourceError, ThinkalikeError, panicked, reason_in_words
from thinkalike.hub import cause_of
from thinkalike.models.checkpoints import named_folder


@contextlib.contextmanager
def explaining_loading_errors(config: ModelConfig) -> Iterator[None]:
    """Turn errors of libraries that load a model into a ModelError that says what failed.

    Exhausted memory becomes a ResourceError. Errors of this package, and exceptions that end the
    process such as KeyboardInterrupt, are raised as they are. The libraries are also kept from
    writing to the screen.

    Args:
        config: The configuration of the model that is loaded while the context is open.
    """
    quieten_libraries()
    try:
        yield
    except ThinkalikeError:
        raise
    except BaseException as error:
        # A hook of a model in memory may raise SystemExit, which should not end the process. A
        # panic of a library in Rust is no `Exception` either.
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
            raise ResourceError(
                f"{attempt}: {reason_in_words(memory_error)}; take a smaller model, "
                f"{named_setting('model.dtype', 'bfloat16')}, or a device with more memory "
                f"({named_setting('model.device')})"
            ) from error
        cause = reason_in_words(error) if folder else cause_on_hub(config, error)
        raise ModelError(f"{attempt}: {cause}") from error


def cause_on_hub(config: ModelConfig, error: BaseException) -> str:
    """Return why a repository of the hub cannot be read, in one line."""
    return cause_of(error, str(config.hub_id), config.revision) or reason_in_words(error)


def quieten_libraries() -> None:
    """Keep transformers and huggingface_hub from writing to the screen.

    Only a job's own output belongs there. Environment variables that the user has set are left as
    they are.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    verbosity = os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    # transformers reads the variable once, when it is imported.
    loaded_logging = sys.modules.get("transformers.utils.logging")  # None: not imported so far
    if verbosity == "error" and loaded_logging:
        loaded_logging.set_verbosity_error()
        loaded_logging.disable_progress_bar()
    # Unless this is set, tokenizers warns in each process that is forked.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Otherwise transformers asks the hub to convert .bin files.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()
