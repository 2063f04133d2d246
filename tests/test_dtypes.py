"""Half precision works in every job: numbers near those of float32, tables and states in float32."""

from __future__ import annotations

import numpy as np
import pytest

PAIR = ("measure.batches=12", "measure.tokens_per_batch=128")
STIMULI = ("stimuli.sentences=60", "stimuli.sample=80")
JOBS = {
    "stitching": ("train.py", "stitch.steps=2", "stitch.warmup=1", "stitch.tokens_per_step=256", "layers=[[2,3]]"),
    "closed": (
        "train.py",
        "stitch=least_squares",
        "stitch.steps=4",
        "stitch.tokens_per_step=256",
        "stitch.controls=true",
    ),
    "penultimate": ("train.py", "stitch.loss=mse", "stitch.steps=4", "stitch.warmup=1", "stitch.tokens_per_step=256"),
    "kl": ("train.py", "stitch.loss=kl", "stitch.steps=4", "stitch.warmup=1", "stitch.tokens_per_step=256"),
    "loss": ("analyze.py", "measure=loss"),
    "cka": ("analyze.py", "measure=cka", *PAIR),
    "mutual_knn": ("analyze.py", "measure=mutual_knn", *PAIR),
    "r2": ("analyze.py", "measure=r2", "measure.fit_batches=12", *PAIR),
    "mlem": ("analyze.py", "measure=mlem", *STIMULI),
    "rsa": ("analyze.py", "measure=rsa", *STIMULI),
}
COLUMN = {"loss": "loss", "cka": "value", "mutual_knn": "value", "r2": "value", "rsa": "value", "mlem": "importance"}


QUICK = ("stitching",)  # the others read models by the same code


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in JOBS])
def test_every_job_runs_in_half_precision_near_its_numbers_in_single(kind, dtype, door, minis, text_files, tmp_path):
    script, *words = JOBS[kind]
    if kind in ("mlem", "rsa"):
        words += ["model=gpt2-mini"]
    else:
        words += [f"model.path={minis}/a", "model.context=32", "data=text", f"data.files=[{text_files}/*.txt]"]
        words += ["data.report_tokens=2048", "data.report_share=0.4"]
        words += [] if kind == "loss" else [f"target.path={minis}/b"]
    tables = []
    for each in ("float32", dtype):
        result = door(script, *words, f"model.dtype={each}", f"store={tmp_path}/results").result
        assert [model["dtype"] for model in result.provenance["models"]] == [each] * len(result.provenance["models"])
        tables.append(result.table)
    column = COLUMN.get(kind, "stitching_loss")
    single, half = (table[column].to_numpy() for table in tables)
    assert np.abs(single - half).max() < 0.1
    assert (single != half).any(), "control: it did run in another precision"
