"""Bad command lines: each is refused in one line, soon, and leaves nothing behind.

Each is refused by another check or library, and none of them by a test elsewhere; {here} is a folder with `FILES`.
"""

import subprocess
import sys

import pytest

from faulty_commands import check_refused

TEXT = [f"logger=none data=text data.files=[{{here}}/{name}]" for name in (
    "nowhere.txt", "surrogate.jsonl", "blank.txt", "latin.txt", "nul.txt", "*.nothing", "words.csv",
)]  # fmt: skip
TABLE = "measure=mlem stimuli=table stimuli.path={here}"

BAD: dict[str, list[str]] = {  # by script
    "train": [
        *TEXT,
        "''",
        "seed=${nope}",
        "--config-name nope seed=1",
        "store=~nobodyatall/x",
        "-cd {here}/own -cn dates",
        "-cd {here}/own model=broken",
        "-cd {here}/own model=odd",
        "layers=[[1180591620717411303424,0]]",
        "model=neox-6l-mini model@target=neox-3l-mini layers=[[5,5]]",
        "model.device=cuda:7",
        "model.device=meta",
        "model=local model.path={here}/file",
        "model=local model.path={here}/listed",
        "model=local model.path={here}/deep",
        "model=local model.path={here}/layers",
        "model=local model.path={here}/index",
        "model=bert-base-uncased",
        "trainer.memory=1kB",
        "stitch.kind=nowhere.py:x",
        "model=gpt2-mini stitch.both=true model@target=gpt2-mini",
        "store={here}/file/below",
        "store=/proc/nowhere",
        "-m stitch.steps=0,-1",
        "-m trainer=ddp trainer.devices=1 seed=1,2",
        "-m hydra/launcher=nope seed=1,2",
        "-m 'seed=interval(0,1)'",
    ],
    "analyze": [
        f"{TABLE}/folder",
        f"{TABLE}/words.csv stimuli.kinds={{a:nope}}",
        f"{TABLE}/words.csv stimuli.sample=99",
        "measure=mlem stimuli=conllu stimuli.path={here}/broken.conllu",
        "measure=cka models=[gpt2-mini,bert-mini] activations={here}/nowhere.npz",
        f"{TABLE}/words.csv activations={{here}}/notnpz.npz",
        "measure=mutual_knn activations=[a.npz,b.npz,c.npz]",
        "measure=rsa activations=[a.npz,b.npz,a.npz]",
        "measure=cka activations=a.npz model=gpt2-mini",
        "measure=r2 activations=a.npz",
        "measure=cka measure.conditional_on=token measure.kernel=rbf",
        "measure=mutual_knn measure.neighbours=1023",
        "-cd {here}/own -cn measures",
        "-m measure=cka,nope",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("line", [f"{script} {words}" for script, lines in BAD.items() for words in lines])
def test_a_bad_line_is_refused_in_one_line(line, cli, tmp_path):
    check_refused(line, cli, tmp_path)


@pytest.mark.ci_slow
def test_a_terminal_in_ascii_shows_what_it_can(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PYTHONUTF8", "0")
    words = ("measure=cka", "model=gelu-3l-mini", "data=grammar", "measure.batches=2", "measure.tokens_per_batch=256")
    done = cli("analyze.py", *words, f"store={tmp_path}/store")
    assert done.status == 0, done.stderr
    assert "results: " in done.stdout


def test_a_deleted_working_folder_is_named(tmp_path):
    (tmp_path / "gone").mkdir()
    script = f"cd {tmp_path}/gone && rmdir {tmp_path}/gone && {sys.executable} -m thinkalike results"
    refused = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr == "error: the working folder was deleted; cd to one that exists\n"
