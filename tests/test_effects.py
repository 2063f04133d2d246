"""Every setting changes a number of a job, or is refused, or is declared not to be in the key."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

import pytest

from conftest import composed, untrained
from thinkalike.config import relevant
from thinkalike.errors import ConfigError
from thinkalike.instruments import check_read, instrument_of

JOBS = {  # by name: what is fitted or measured
    "linear": "train stitch=linear",
    "low rank": "train stitch=low_rank",
    "paper": "train stitch=affine recipe=paper",
    "closed": "train stitch=least_squares",
    "rank": "train stitch=reduced_rank",
    "identity": "train stitch=identity",
    "pretrain": "train task=pretrain model=gelu-3l-mini",
    "nli": "train task=nli model=bert-mini",
    "sae": "train task=sae model=gpt2-mini",
    "relu": "train task=sae model=gpt2-mini sae.activation=relu",
    "loss": "analyze measure=loss model=gpt2-mini",
    "cka": "analyze measure=cka model=gpt2-mini",
    "mutual_knn": "analyze measure=mutual_knn model=gpt2-mini",
    "r2": "analyze measure=r2 model=gpt2-mini",
    "mlem": "analyze measure=mlem model=gpt2-mini",
    "rsa": "analyze measure=rsa model=gpt2-mini",
}
WHICH = {  # which job it is, and what decides other settings
    "kind", "task", "experiment", "name", "mini", "members", "source", "path", "base", "files", "scale", "recipe",
}  # fmt: skip
OTHER = {  # values of settings whose type does not say one
    "optimizer": ["adam", "sgd"], "init": ["identity", "least_squares"], "floor": ["true", "false"],
    "features": "[PoS]", "balance": "[PoS]", "lr_multiples": "[0.5]",
    "beside": "[random]", "keep": "log2", "layers": "all", "revision": "main", "corpus": "pydoc", "hub_id": "a/b",
    "stitch": "x", "classes": "[a,b]", "architecture": "{n_layers: 2}", "memory": "1GB", "alphas": "[0.5]",
    "rank": "5", "skip_first": "2",
}  # fmt: skip


def another(item: dataclasses.Field, hint: typing.Any, now: typing.Any) -> str | None:
    """A value that a setting does not have; None: the test knows none."""
    if item.name in OTHER:
        values = [OTHER[item.name]] if isinstance(OTHER[item.name], str) else OTHER[item.name]
        return next(value for value in values if value != str(now).lower())
    kinds = [each for each in (hint, *typing.get_args(hint)) if each is not type(None)]
    choices = [value for kind in kinds if typing.get_origin(kind) is typing.Literal for value in typing.get_args(kind)]
    if choices:
        return next((str(choice) for choice in choices if choice != now), None)
    if bool in kinds:
        return str(not now).lower()
    if int in kinds:
        return str((now or 1) * 2)
    return str((now or 1.0) / 2) if float in kinds else None


def settings(config) -> list[tuple[str, str]]:
    """Each setting of a job that the test can change, and another value."""
    found = []
    parts = [item.name for item in dataclasses.fields(config) if not item.metadata.get("not_in_key")]
    for part in [None, *parts]:
        owner = config if part is None else getattr(config, part)
        if dataclasses.is_dataclass(owner):
            hints = typing.get_type_hints(type(owner))
            for item in dataclasses.fields(owner):
                value = another(item, hints[item.name], getattr(owner, item.name))
                if value is not None and item.name not in WHICH and not item.metadata.get("not_in_key"):
                    found.append((f"{part}.{item.name}" if part else item.name, value))
    return found


def in_key(config) -> dict:
    kind = instrument_of(config)
    read = relevant(kind.with_unread_reset(config)).items()
    return {name: part for name, part in read if name in kind.reads}


@pytest.mark.slow
@pytest.mark.ci_slow
@pytest.mark.parametrize("job", JOBS)
def test_a_setting_that_is_taken_is_in_the_key(job):
    entry, *words = JOBS[job].split(" ")
    plain, silent, taken = composed(*words, entry=entry), [], 0
    for key, value in settings(plain):
        more = [word for word in words if not word.startswith(f"{key}=")] + [f"{key}={value}"]
        try:
            config = composed(*more, entry=entry)
            check_read(more, config)
        except ConfigError:
            continue
        taken += 1
        if in_key(config) == in_key(plain):
            silent.append(f"{key}={value}")
    assert silent == []
    assert taken > 2, "control"


def columns(result) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(result.folder).iterdir() if path.suffix in (".csv", ".npz")}


@pytest.mark.slow
@pytest.mark.parametrize("job", ["linear", "low rank", "paper", "closed", "rank", "identity"])
def test_a_setting_of_a_stitch_that_is_taken_changes_a_number(job, cli, small_stitching):
    words = JOBS[job].split(" ")[1:]
    kind = {"closed": "closed", "rank": "closed", "identity": "identity"}.get(job)
    small = [*(untrained(small_stitching, kind) if kind else small_stitching), "layers=[[1,1]]"]
    plain, silent = columns(cli("train.py", *small, *words).result), []
    for key, value in settings(composed(*words)):
        value = {"stitch.clip": "1e-3"}.get(key, value)
        if not key.startswith("stitch."):
            continue
        line = [*(word for word in [*small, *words] if not word.startswith(f"{key}=")), f"{key}={value}"]
        done = cli("train.py", *line)
        if done.status == 0 and columns(done.result) == plain:
            silent.append(f"{key}={value}")
    assert silent == []
