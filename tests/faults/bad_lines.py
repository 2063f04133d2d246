"""Command lines that must be refused, each by another check or library, some like them that are right, and their files.

{here} is a folder with the files of `write_files`.
"""

from __future__ import annotations

from pathlib import Path

TEXT = [f"logger=none data=text data.files=[{{here}}/{name}]" for name in (
    "nowhere.txt", "folder", "surrogate.jsonl", "number.jsonl", "list.jsonl", "broken.jsonl", "otherfield.jsonl",
    "empty.jsonl", "blank.txt", "latin.txt", "nul.txt", "one.txt", "garbage.parquet", "garbage.jsonl.gz",
    "garbage.jsonl.zst", "*.nothing", "words.csv",
)]  # fmt: skip
TABLE = "measure=mlem stimuli=table stimuli.path={here}"
PRETRAIN = "task=pretrain logger=none"
SAE = "task=sae logger=none"
NLI = "task=nli model=bert-mini"

BAD: dict[str, list[str]] = {  # by script
    "train": [
        *TEXT,
        "layers=[[0,0]",
        "''",
        "seed=${nope}",
        "seed=1 --config-name nope",
        "store=~nobodyatall/x",
        "-cp {here}/taken",
        "-cp {here}/own -cn dates",
        "-cp {here}/own model=broken",
        "-cp {here}/own model=odd",
        "layers=[[1180591620717411303424,0]]",
        "model=neox-6l-mini model@target=neox-3l-mini layers=[[5,5]]",
        "model.device=cuda:7",
        "model.device=meta",
        "model=local model.path={here}/nowhere",
        "model=local model.path={here}/file",
        "model=local model.path={here}/folder",
        "model=local model.path={here}/config",
        "model=local model.path={here}/odd",
        "model=local model.path={here}/garbled",
        "model=local model.path={here}/listed",
        "model=bert-base-uncased",
        "stitch=low_rank stitch.rank=1000",
        "trainer.memory=1kB",
        "stitch.kind=nowhere.py:x",
        "model=gpt2-mini stitch.both=true model@target=gpt2-mini",
        "store={here}/file/below",
        "store=/proc/nowhere",
        f"{NLI} nli.freeze=99",
        f"{NLI} pairs=files",
        f"{NLI} pairs=files pairs.fit={{here}}/pairs.jsonl",
        f"{NLI} pairs=files pairs.fit={{here}}/broken.tsv",
        "task=nli model=gelu-3l-mini",
        f"{SAE} sae.layer=99",
        f"{SAE} sae.start=transferred sae.source=nowhere",
        f"{SAE} sae.start=transferred sae.source=gelu-3l-mini sae.source_layer=7",
        f"{SAE} trainer=ddp trainer.devices=2",
        "task=sae model=bert-mini",
        f"{PRETRAIN} model.architecture.n_layers=abc",
        "-m stitch.steps=0,-1",
        "-m stitch=linear,lineer",
        "-m trainer=ddp trainer.devices=1 seed=1,2",
        "-m hydra/launcher=nope seed=1,2",
        "-m 'seed=interval(0,1)'",
    ],
    "analyze": [
        *(f"{TABLE}/{name}" for name in ("nowhere.csv", "folder", "noheader.csv", "onlyheader.csv", "ragged.csv")),
        f"{TABLE}/twice.csv",
        f"{TABLE}/words.csv stimuli.features=[nope]",
        f"{TABLE}/words.csv stimuli.kinds={{a:nope}}",
        f"{TABLE}/words.csv stimuli.columns={{text:nope}}",
        f"{TABLE}/words.csv stimuli.sample=99",
        "measure=mlem stimuli=conllu stimuli.path={here}/empty.conllu",
        "measure=mlem stimuli=conllu stimuli.path={here}/broken.conllu",
        "measure=cka models=[gpt2-mini]",
        "measure=cka models=[gpt2-mini,gpt2-mini]",
        "measure=cka models=[gpt2-mini,gpt2-minni]",
        "measure=cka models=[gpt2-mini,bert-mini] model=mamba-mini",
        "measure=court models=[gpt2-mini,bert-mini]",
        "measure=cka models=[gpt2-mini,bert-mini] activations={here}/nowhere.npz",
        f"{TABLE}/words.csv activations={{here}}/nowhere.npz",
        f"{TABLE}/words.csv activations={{here}}/notnpz.npz",
        "measure=mutual_knn activations=[a.npz,b.npz,c.npz]",
        "measure=rsa activations=[a.npz,b.npz,a.npz]",
        "measure=rsa measure.distance=crossnobis",
        "measure=cka activations=a.npz model=gpt2-mini",
        "measure=r2 activations=a.npz",
        "measure=asymmetry",
        "measure=transfer_maps",
        "measure=cka measure.given=token measure.kernel=rbf",
        "measure=mutual_knn measure.neighbours=1023",
        "measure=population pairs.heuristic=nope",
        "experiment=brown2023/figure1 measure=rsa",
        "experiment=brown2023/figure1 model=gpt2",
        "-cp {here}/own -cn measures",
        "-m measure=cka,nope",
    ],
}

RIGHT = [
    "train stitch=low_rank stitch.rank=4",
    "train stitch=identity stitch.steps=0",
    "train layers=[[0,0],[0,1]]",
    "train seed=4294967295",
    "train trainer=ddp trainer.devices=2",
    "train +hydra.job.env_set.A=1",
    "train ++stitch.steps=300",
    "train data=text 'data.files=[\"größe 1.txt\"]'",
    "train +model.architecture.rotary_dim=2",
    "analyze measure=cka measure.stop_at_width=null",
    "analyze measure=mlem measure.interactions=[[PoS,Number],[PoS,Tense]]",
    "analyze stimuli.sample=5 stimuli.balance=[PoS] measure=rsa",
]

FILES = {
    "surrogate.jsonl": '{"text": "fine"}\n{"text": "\\ud800"}\n',
    "number.jsonl": '{"text": 3}\n',
    "list.jsonl": "[1, 2]\n",
    "broken.jsonl": '{"text": "fine"}\n{oops\n',
    "otherfield.jsonl": '{"body": "fine"}\n',
    "empty.jsonl": "",
    "blank.txt": " \n\t\n",
    "one.txt": "a text that is long enough for a line of its own. " * 40,
    "noheader.csv": "",
    "onlyheader.csv": "text,a\n",
    "ragged.csv": "text,a\nx,1,2\n",
    "words.csv": "text,a,b\nred,1,x\nblue,2,y\ngreen,3,x\n",
    "twice.csv": "text,a,a\nx,1,2\n",
    "empty.conllu": "",
    "broken.conllu": "1\tx\n",
    "pairs.jsonl": '{"sentence1": "a", "sentence2": "b", "gold_label": "perhaps"}\n',
    "broken.tsv": "a\tb\n1\n",
    "folder/notes": "",
    "config/config.json": "{}",
    "odd/config.json": '{"model_type": "t5"}',
    "garbled/config.json": "{oops",
    "listed/config.json": "[]",
    "file": "no folder",
    "notnpz.npz": "no archive",
    "own/model/broken.yaml": "name: [\n",
    "own/model/odd.yaml": "name: odd\nlayers: 3\n",
    "own/measures.yaml": "defaults: [{override /measure: cka}]\nmeasure: {folds: 3}\n",
    "own/dates.yaml": "seed: 2026-01-01\n",
    "taken/train.yaml": "seed: 3\n",
}
BYTES = {
    "nul.txt": b"\x00" * 64,
    "latin.txt": b"\xff\xfe\xe4",
    "garbage.parquet": b"PAR1 garbage",
    "garbage.jsonl.gz": b"\x1f\x8b garbage",
    "garbage.jsonl.zst": b"\x28\xb5\x2f\xfd garbage",
}


def write_files(folder: Path) -> None:
    """Write the files that bad lines name."""
    for name, content in [*((name, text.encode()) for name, text in FILES.items()), *BYTES.items()]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
