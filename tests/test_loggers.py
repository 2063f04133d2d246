"""Loggers of both commands, read back from what they write; offline."""

import json
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import pytest_socket
from PIL import Image

import wandb_runs
from thinkalike import loggers
from thinkalike.config import LoggerConfig
from thinkalike.errors import ConfigError, DataError
from thinkalike.job.performing import perform
from thinkalike.loggers import run_name
from toy_job import Toy, config


class Pictured(Toy):
    """Draws a figure that loggers can show, and leaves a second table and a model's checkpoint."""

    def run(self, config, work):
        outcome = super().run(config, work)
        (work.job.aside / "model").mkdir()
        (work.job.aside / "model" / "weights.bin").write_bytes(b"large")
        outcome.tables["scores"] = pd.DataFrame({"layer": [-1, "last"], "score": [0.5, None]})
        outcome.blank = ("score",)
        return outcome

    def draw(self, result, folder: Path) -> None:
        folder.mkdir()
        Image.new("RGB", (2, 2)).save(folder / "toy.png")


@pytest.fixture(autouse=True)
def _of_nobody(monkeypatch, tmp_path, tmp_path_factory):
    """No key, no settings, and no mode but those of the test; W&B is quiet."""
    for name, value in wandb_runs.without_key(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_MODE", "WANDB_RUN_GROUP", "WANDB_SWEEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path_factory.mktemp("data")))
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    pytest_socket.socket_allow_hosts(["127.0.0.1", "localhost"], allow_unix_socket=True)  # of its own process


def on(store: Path, **changes):
    return config(store, logger=LoggerConfig(kind="wandb", **changes))


def test_a_project_that_wandb_refuses_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"^logger\.project=a/b: W&B refuses: "):
        perform(Pictured(), on(tmp_path, project="a/b"))


@pytest.mark.ci_slow
def test_an_offline_wandb_run_has_all_parts_of_a_result(tmp_path, caplog):
    with caplog.at_level("INFO", logger="thinkalike"):
        result = perform(Pictured(), on(tmp_path, project="mine", group="ours"))
    assert f"W&B: no key, so the run stays offline; to upload: wandb sync {tmp_path}/wandb/offline-run-*" in caplog.text
    run = wandb_runs.Offline.only(tmp_path)
    assert (run.run.project, run.run.run_group, run.run.job_type) == ("mine", "ours", "toy")
    assert run.run.display_name == f"toy {result.key}"
    assert run.config["seed"] == 0
    assert run.config["measure"] == {"kind": "toy", "size": 3}
    assert run.summary["mean"] == result.scalars["mean"]
    assert {"table", "tables/scores", "figures/toy"} <= set(run.history)
    (table,) = run.folder.glob("files/media/table/table_*.table.json")
    assert json.loads(table.read_text())["columns"] == ["number", "start"]
    (mixed,) = run.folder.glob("files/media/table/tables/scores_*.table.json")
    assert [row[0] for row in json.loads(mixed.read_text())["data"]] == ["-1", "last"]
    assert len(list(run.folder.glob("files/media/images/**/toy*.png"))) == 1
    (artifact,) = run.artifacts
    assert (artifact.type, artifact.name) == ("result", f"toy-{result.key}")
    files = {entry.path for entry in artifact.manifest.contents}
    assert {"table.csv", "scores.csv", "result.json", "config.yaml", "figures/toy.png"} <= files
    assert not any("weights" in file for file in files), "the checkpoint of a model stays in the store"
    assert run.exit_codes == [0]


@pytest.mark.slow
def test_a_job_that_fails_is_a_failed_run(tmp_path):
    with pytest.raises(DataError):
        perform(Toy(break_off=DataError("broken off")), on(tmp_path))
    assert wandb_runs.Offline.only(tmp_path).exit_codes == [1]


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch, caplog):
    import wandb

    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        wandb.teardown()  # settings of before
        began = time.monotonic()
        with caplog.at_level("INFO", logger="thinkalike"):
            perform(Toy(), on(tmp_path))
        wandb.teardown()
        assert time.monotonic() - began < 60
    assert "so the run stays offline" in caplog.text


@pytest.mark.ci_slow
def test_a_run_that_the_server_refuses_goes_on_offline(tmp_path, monkeypatch, caplog):
    import wandb

    begin, modes = wandb.init, []

    def init(mode, **options):
        modes.append(mode)
        if mode == "online":
            raise wandb.errors.CommError("the key is not known\nsecond line")
        return begin(mode=mode, **options)

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    wandb.teardown()  # settings of before
    monkeypatch.setattr(wandb, "login", lambda prompt: True)
    with caplog.at_level("INFO", logger="thinkalike"):
        perform(Toy(), on(tmp_path))
    wandb.teardown()
    assert modes == ["online", "offline"]
    assert "W&B: the key is not known second line, so the run stays offline" in caplog.text


class Recorder:
    """Notes what it is told."""

    said: list = []  # noqa: RUF012

    def __init__(self, *_):
        pass

    def publish(self, result) -> None:
        self.said.append((result.kind, len(result.figures), [each.name for each in result.headlines]))


def test_a_logger_gets_the_result_when_it_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "Wandb", Recorder)
    monkeypatch.setattr(Recorder, "said", [])
    monkeypatch.setattr(loggers, "wandb_run", lambda *_, **__: SimpleNamespace(finish=lambda exit_code: None))
    perform(Toy(), on(tmp_path))
    assert Recorder.said == [("toy", 1, ["mean"])]


def test_the_name_of_a_run_has_kind_models_and_key():
    assert run_name("cka", "key", {"labels": "gpt2, gpt2"}) == "cka gpt2 key"
    assert run_name("cka", "key", {"labels": "a, b"}) == "cka a, b key"
    assert run_name("cka", "key", {}) == "cka key"
    assert run_name("cka", "key", {"labels": "a" * 200}) == f"cka {'a' * 120} key"
