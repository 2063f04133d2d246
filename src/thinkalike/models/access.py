"""Reaching a checkpoint for the time that it is read: a folder, a file, or a commit of the hub."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, ModelError, ThinkalikeError
from thinkalike.files import is_folder
from thinkalike.hub import Commit, reading, refused, resolved
from thinkalike.models.checkpoints import LIGHTNING, check_no_adapter, files_beside, folder_of
from thinkalike.models.loading_errors import cause_on_hub

log = logging.getLogger(__name__)


class CheckpointLocation(NamedTuple):
    """Where a checkpoint can be read.

    Attributes:
        place: A folder, a GGUF file or the name of a repository of the hub.
        revision: The commit of a repository; "embedded" for a bundled model, and "local" for any
            other folder or file.
    """

    place: str
    revision: str


@contextlib.contextmanager
def checkpoint_location(config: ModelConfig) -> Iterator[CheckpointLocation]:
    """Yield where a checkpoint can be read while the context is open, and its revision.

    A checkpoint of Lightning is unpacked into a temporary folder. All files of a repository of the
    hub are of one commit, which is the revision. The revision of a model that is bundled with this
    package is "embedded", and that of any other folder or file is "local".
    """
    folder = folder_of(config)
    if folder is None:
        with _hub_commit(config) as commit:
            yield CheckpointLocation(str(config.hub_id), commit)
        return
    resolved_folder = folder.resolve()
    revision = "embedded" if config.mini else "local"
    if folder.suffix != LIGHTNING:
        yield CheckpointLocation(str(resolved_folder), revision)
        return
    with _unpacked_lightning(resolved_folder) as unpacked:
        yield CheckpointLocation(unpacked, revision)


@contextlib.contextmanager
def _unpacked_lightning(checkpoint: Path) -> Iterator[str]:
    """Yield a temporary folder that holds a Lightning checkpoint in the layout of transformers.

    Its weights are in pytorch_model.bin. Its configuration and tokenizer are links to the files
    beside the checkpoint.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="thinkalike-lightning-") as unpacked:
        for path in files_beside(checkpoint):
            Path(unpacked, path.name).symlink_to(path)
        find_classes = torch.serialization.get_unsafe_globals_in_checkpoint
        class_names = find_classes(checkpoint)  # type: ignore[no-untyped-call]
        # No code of the checkpoint runs: `_Unread` stands in for each class that it names.
        stand_ins: list[Callable[..., object] | tuple[Callable[..., object], str]] = []
        stand_ins += [(_Unread, name) for name in class_names]
        with torch.serialization.safe_globals(stand_ins):
            content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        weights = content["state_dict"]
        # If all names begin with the same component, such as "model" in "model.norm.weight", it is
        # the attribute of Lightning's module that holds the model, and is removed.
        first_components = {name.partition(".")[0] for name in weights}
        if len(first_components) == 1:
            weights = {name.partition(".")[2]: weight for name, weight in weights.items()}
        torch.save(weights, Path(unpacked, "pytorch_model.bin"))
        yield unpacked


class _Unread:
    """Takes the place of what a checkpoint of Lightning holds beside tensors, such as settings.

    The classes of these never run.
    """

    def __init__(self, *args: object):
        pass

    def __setstate__(self, state: object) -> None:
        pass


def commit_of_model(config: ModelConfig) -> Commit:
    """Return the commit of a model of the hub: that of its revision, or else of the branch main.

    Raises:
        ConfigError: The model is not on the hub.
        ModelError: Neither the hub nor its cache has it, or its files include an adapter, which
            is read only from a folder.
    """
    if config.hub_id is None:
        raise ConfigError(
            f"model={config.called} says nowhere where its weights are; give "
            f"{named_setting('model.path')} or {named_setting('model.hub_id')}"
        )
    try:
        commit = resolved("model", str(config.hub_id), config.revision)
    except ThinkalikeError:
        raise
    except Exception as error:
        if refused(error):
            raise
        from huggingface_hub import constants

        raise ModelError(
            f"model={config.called}: cannot get {config.hub_id}: {cause_on_hub(config, error)} "
            f"({constants.ENDPOINT}), and {constants.HF_HUB_CACHE} has no copy; set HF_HOME to "
            "a cache that has it, give a folder "
            f"({named_setting('model', like='DIR')}), or take a mini, such as gelu-3l-mini"
        ) from error
    check_no_adapter(config, str(config.hub_id), commit.files)
    return commit


@contextlib.contextmanager
def _hub_commit(config: ModelConfig) -> Iterator[str]:
    """Yield the commit from which all files of a repository are read while the context is open.

    If the hub does not answer, the files are read from its cache on this machine, with a warning.

    Raises:
        ModelError: The repository is neither reached nor in the cache, a folder here has its name,
            or a file is not the one that the hub states.
    """
    from huggingface_hub import constants, hf_hub_download

    repository = str(config.hub_id)
    commit = commit_of_model(config)
    if is_folder(repository):
        raise ModelError(
            f"model={config.called}: {repository} is also a folder here, which would be read "
            "instead; call from elsewhere, or give the folder: "
            f"{named_setting('model', f'./{repository}')}"
        )
    with contextlib.ExitStack() as contexts:
        if commit.trouble:
            cause = cause_on_hub(config, commit.trouble)
            log.warning("using the cached files of %s: %s", repository, cause)
            # Otherwise the hub, which does not answer, would be asked for each file.
            contexts.callback(setattr, constants, "HF_HUB_OFFLINE", constants.HF_HUB_OFFLINE)
            constants.HF_HUB_OFFLINE = True
        # At the end this compares the files with the digests that the hub states.
        contexts.enter_context(reading("model", repository, commit.sha))
        try:
            yield commit.sha
        except OSError as error:
            # transformers says that a file is missing if the hub does not deliver it. Asking for
            # it again raises the hub's own error, which tells the cause.
            for name in commit.files:
                if name in str(error):
                    hf_hub_download(repository, name, revision=commit.sha)
            raise
