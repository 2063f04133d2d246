"""What the job of every instrument prints is one screen: a table of a few columns, sentences, and no warning twice."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import transformers
from rich.cells import cell_len

import tiny
from classifiers import THREE, loaded, relabelled, write_base, write_sibling
from conftest import Door
from thinkalike.config import KINDS
from thinkalike.data.templates import nli_challenge, nli_training

COLUMNS, WIDTH, LINES = 8, 80, 30
FRAME = tuple("┏┃┡│└├╇┗")
SENTENCE = re.compile(r"(?:^|[.:] |\n)[A-Z0-9φψ‖][^\n│┃]*(?:\n  [^\n│┃]+)*[.](?:\n|$)")

SMALL = "data=text data.files=[{texts}/*.txt] data.context=32"
PAIR = "model.path={minis}/a target.path={minis}/b model.name=a target.name=b"
STATES = f"analyze.py {PAIR} {SMALL} data.report_share=.5 measure.tokens_per_batch=64 measure.batches=4 measure="
TRAINED = f"train.py {PAIR} {SMALL} data.report_share=.4 data.report_tokens=2048 model.context=32 target.context=32"
STITCH = f"{TRAINED} stitch.steps=4 stitch.warmup=1 stitch.tokens_per_step=256"
STIMULI = "model=local model.path={gpt2} model@target=local target.path={other} stimuli.sentences=24"
TRANSFER = (
    "analyze.py model=local model.path={gpt2} model@target=local target.path={other} measure.draws=1 measure.folds=2 "
    f"data.report_tokens=2048 measure.fit_tokens=4096 layers=[[1,2]] {SMALL} measure="
)
PROBES = "probes stimuli.sentences=30 measure.inner_folds=2 measure.least=5 measure.alphas=[1.0]"
WORDS = "stimuli=table stimuli.path={words} activations=[{subjects}]"
JOBS = {
    "stitching": STITCH,
    "stitching, both ways": f"{STITCH} layers=all stitch.both=true",
    "pretraining": f"train.py task=pretrain model=gelu-3l-mini {SMALL} pretrain.tokens=2048 pretrain.vocabulary=300 "
    "pretrain.tokens_per_step=256 data.report_share=.4 data.report_tokens=2048 model.context=32",
    "nli": "train.py task=nli model=local model.path={bert} nli.context=72 nli.lr=1e-3 nli.epochs=1 "
    "pairs.fit_pairs=64 pairs.report_pairs=40 pairs.challenge_pairs=120",
    "sae": f"train.py task=sae {SMALL} " + "model.path={minis}/a sae.layer=1 sae.width=48 sae.k=4 sae.tokens=1024 "
    "sae.tokens_per_step=64 sae.steps_per_buffer=4 sae.map_tokens=512 data.report_tokens=2048 data.report_share=.4 "
    "sae.seeds=2 sae.rates=[.5] sae.beside=[random,least_squares]",
    "loss": "analyze.py measure=loss model.path={minis}/a " + f"{SMALL} data.report_share=.5",
    "distance": "analyze.py measure=distance model.path={minis}/a target.path={minis}/b",
    "diff": "analyze.py measure=diff model={minis}/a model@target={changed} measure.tokens=1024 "
    f"measure.tokens_per_part=512 data.report_share=.4 {SMALL}",
    "trajectory": "analyze.py measure=trajectory model={run} measure.tokens=512 measure.least=5 measure.folds=3 "
    f"measure.permutations=19 measure.importance=false stimuli.sentences=24 data.report_share=.3 {SMALL}",
    "mlem": f"analyze.py measure=mlem {STIMULI} measure.permutations=1 measure.folds=2",
    "mlem of subjects": f"analyze.py measure=mlem {WORDS} measure.permutations=1 measure.folds=2",
    "rsa": f"analyze.py measure=rsa {STIMULI}",
    "rsa of subjects": f"analyze.py measure=rsa {WORDS} " + "model=local model.path={gpt2}",
    "probes": TRANSFER + PROBES,
    "steering": TRANSFER + "steering measure.contrast=table measure.path={pairs} measure.strengths=[1.0]",
    "population": "analyze.py measure=population population=local pairs=files pairs.report={report} "
    "pairs.challenge={challenge} population.generalizing=[{group}] population.heuristic=[{heuristic}] "
    "measure.tokens_per_batch=200",
    "court": "analyze.py measure=court model.path={minis}/a model.context=32 measure.fit_tokens=2048 "
    f"measure.report_tokens=1024 measure.other_tokens=1024 measure.sources=[rotated] {SMALL}",
    "atlas": f"analyze.py measure=atlas measure.measures=[cka,procrustes,jsd] measure.batches=4 {SMALL} "
    "measure.tokens_per_batch=64 data.report_share=.5 models=[{minis}/a,{minis}/b,{minis}/wide]",
    "r2": f"{STATES}r2 measure.fit_batches=6",
    "cka, a model with itself": f"{STATES}cka".replace("minis}/b", "minis}/a").replace("name=b", "name=a"),
    **{
        kind: f"{STATES}{kind}"
        for kind in (
            *("cka", "mutual_knn", "procrustes", "svcca", "soft_matching", "distance_correlation", "token_rsa"),
            *("jaccard", "second_order_cosine", "jsd", "disagreement"),
        )
    },
}
NEEDS = {"asymmetry": ["stitching, both ways"]}


@pytest.fixture(scope="module")
def places(minis, text_files, checkpoints, tmp_path_factory):
    """What the jobs read, by name."""
    root = tmp_path_factory.mktemp("screens")
    base = write_base(root / "base", THREE)
    members = [write_sibling(root / name, base, seed) for seed, name in enumerate("abcd")]
    pairs = relabelled(nli_training(60), loaded(base)), relabelled(nli_challenge(120), loaded(base))
    module = tiny.native()
    with torch.no_grad():
        next(module.get_submodule("layers.2.mlp").parameters()).mul_(1.5)
    (root / "words.csv").write_text("\n".join(["id,text,colour,size", *WORDS_OF_TABLE]))
    (root / "contrasts.csv").write_text("\n".join(CONTRASTS))
    for step in (0, 10, 100):
        tiny.write_checkpoint("gpt2", root / "run" / f"checkpoint-{step}", seed=step + 1)
    for subject in range(3):
        draw = np.random.default_rng(subject)
        layers = {name: draw.normal(size=(24, 5)) for name in ("V1", "V2", "IT")}
        np.savez(root / f"s{subject}.npz", **layers, ids=[f"w{n}" for n in range(24)])
    return {
        "minis": minis, "changed": tiny.write_mini(root / "changed", module=module), "words": root / "words.csv",
        "pairs": root / "contrasts.csv", "run": root / "run", "texts": text_files, "gpt2": checkpoints["gpt2"],
        "root": root,
        "other": tiny.write_checkpoint("gpt2", root / "second", seed=2), "bert": small_bert(root / "bert"),
        "report": tiny.write_pairs(pairs[0], root / "mnli.jsonl"),
        "challenge": tiny.write_pairs(pairs[1], root / "hans.txt"),
        "group": ",".join(map(str, members[:2])), "heuristic": ",".join(map(str, members[2:])),
        "subjects": ",".join(str(root / f"s{subject}.npz") for subject in range(3)),
    }  # fmt: skip


WORDS_OF_TABLE = [f"w{n},{'ab'[n % 2]}{'cd'[n // 2 % 2]} {chr(97 + n)},{'rgb'[n % 3]},{n % 4}" for n in range(24)]
CONTRASTS = ["text,counterpart,word,counterpart_word,up,down"]
CONTRASTS += [f"{word} c,{word}e c,{word},{word}e, a, b" for word in ("ab", "cd", "ef", "gh")]


def small_bert(folder):
    """An untrained encoder whose tokenizer knows pairs."""
    tokenizer = tiny.pair_tokenizer()
    size = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    shape = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=72, **size)
    transformers.BertForMaskedLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def done(name, places):
    """The job of this name, which has ended well."""
    script, *words = [word.format(**places) for word in JOBS[name].split()]
    finished = Door(places["root"])(script, *words, "logger=none", env={"COLUMNS": str(WIDTH)})
    assert finished.status == 0, finished.stderr
    return finished


def test_every_instrument_has_a_job_here():
    assert {name.split(",")[0].split(" of ")[0] for name in JOBS} == set(KINDS)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_prints_one_screen_with_sentences_and_no_warning_twice(name, places):
    for needed in NEEDS.get(name, ()):
        done(needed, places)
    finished = done(name, places)
    lines = finished.stdout.splitlines()
    print(finished.stdout, finished.stderr)
    heads = [line for line in lines if line.startswith("┃")]
    assert max((len(line.strip("┃").split("┃")) for line in heads), default=0) <= COLUMNS
    edges = [number for number, line in enumerate(lines) if line.startswith("┏")]
    assert len(edges) <= 2, "a table for each of two sides at most"
    assert not any(lines[number - 1].startswith("└") for number in edges), "none that is too wide, and cut in two"
    assert max(map(cell_len, lines)) <= WIDTH
    assert len(lines) <= LINES
    text = "\n".join(line for line in lines if not line.startswith((*FRAME, "results: ")))
    assert SENTENCE.search(text), lines
    assert " nan" not in finished.stdout.lower().replace("not a number (nan)", "")
    warnings = [re.sub(r"[\d.,]+", "#", line) for line in finished.stderr.splitlines() if line.startswith("warning")]
    assert len(warnings) == len(set(warnings)), finished.stderr
