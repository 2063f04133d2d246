"""Jobs of contrib: bad command lines are refused in one line, kills and a lack of memory lose nothing."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from faulty_commands import check_refused, ended, one_line

pytestmark = pytest.mark.slow

PRETRAIN = "task=pretrain model=gelu-3l-mini logger=none"
SAE = "task=sae logger=none"
NLI = "task=nli model=bert-mini"
BAD = [
    f"train {NLI} pairs=files",
    f"train {SAE} sae.start=transferred sae.source=nowhere",
    f"train {SAE} trainer=ddp trainer.devices=2",
    f"train {PRETRAIN} model.architecture.n_layers=abc",
    "analyze measure=population pairs.heuristic=nope",
]


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_refused_in_one_line(line, cli, tmp_path):
    check_refused(line, cli, tmp_path)


@pytest.mark.timeout(3000)
def test_twenty_kills_leave_nothing_wrong():
    script = Path(__file__).with_name("kills_of_contrib.py")
    done = subprocess.run([sys.executable, str(script), "20"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " 0 problems" in done.stdout.splitlines()[-1]


def test_too_little_memory_is_one_line(text_files, tmp_path):
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    words = ["task=pretrain", "model=gelu-3l-mini", "pretrain.tokens=4000000", "pretrain.tokens_per_step=2000000"]
    shape = {"d_model": 16, "n_heads": 2, "d_head": 8, "d_mlp": 32}
    words += [f"model.architecture.{name}={size}" for name, size in shape.items()]
    words += ["pretrain.vocabulary=280", "pretrain.warmup=1", "data=text", "data.context=64"]
    words += [f"data.files=[{text_files}/*.txt]", "data.evaluation_tokens=2048", "data.evaluation_share=0.3"]
    words += [f"store={tmp_path}/results", f"data.cache={tmp_path}/cache"]
    line = one_line(*ended(words, tmp_path, limited))
    assert "memory" in line
