"""Whether what R² gained by the last doubling of the text says what four times as much text gains: `left_to_gain`.

    python benchmarks/learning.py                       nine pairs of minis, two minutes, one thread
    python benchmarks/learning.py smollm2 gemma3-270m 15 9 10      folders or names, two layers, and batches of 1,024

Maps are fitted on a sixteenth, an eighth, a quarter ("all") and four quarters of four fifths of the documents, and
judged on the last fifth. The ratio is the gain from one quarter to four over that from an eighth to a quarter.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from thinkalike.config import compose_job
from thinkalike.measures import LinearPrediction
from thinkalike.models.load import load_models
from thinkalike.states.batches import ModelRuns, text_batches

CASES = (
    ("gelu-3l-mini", "solu-3l-mini", 1, 1), ("gelu-3l-mini", "gelu-3l-mini-s1", 2, 2),
    ("gpt2-mini", "gpt2-mini-s1", 1, 1), ("gpt2-mini", "gelu-4l-mini", 2, 3), ("neox-4l-mini", "neox-5l-mini", 2, 2),
    ("mamba-mini", "mamba-mini-s1", 1, 1), ("gpt2-mini", "mamba-mini", 2, 1), ("bert-mini", "bert-mini-s1", 1, 1),
    ("gelu-4l-mini", "neox-6l-mini", 0, 0),
)  # fmt: skip
SHARES, BATCHES, ROWS = (16, 8, 4, 1), 24, 1024


def curve(source: str, target: str, layer: int, depth: int, batches: int) -> list[float]:
    """Return R², the mean of both ways, of maps that are fitted on these shares of the documents."""
    job = compose_job("analyze", ["measure=r2", f"model={source}", f"model@target={target}"])
    measure = replace(job.measure, batches=batches, fit_batches=1, tokens_per_batch=ROWS)
    read = text_batches(
        load_models(job.model, job.target), [[layer], [depth]], job.data, measure, ModelRuns(), is_spread=True
    )
    found = [batch for number in range(read.total) for batch in read.pool(number)]
    x, y = (torch.cat([batch.states[side][0] for batch in found]) for side in (0, 1))
    owners = torch.cat([batch.groups for batch in found])
    documents = owners.unique()
    documents = documents[torch.randperm(len(documents), generator=torch.Generator().manual_seed(0))]
    judge, fit = documents[: len(documents) // 5], documents[len(documents) // 5 :]
    judged, shares = torch.isin(owners, judge), []
    for share in SHARES:
        kept = torch.isin(owners, fit[: max(len(fit) // share, 1)])
        prediction = LinearPrediction([(0, 0)])
        prediction.fit([x[kept]], [y[kept]], owners[kept])
        prediction.judge([x[judged]], [y[judged]], documents=owners[judged])
        shares.append(float(prediction.replicates()[0].mean()))
    return shares


def main() -> None:
    torch.set_num_threads(1)
    cases = CASES if len(sys.argv) < 6 else ((sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])),)
    batches = BATCHES if len(sys.argv) < 6 else int(sys.argv[5])
    print("| pair | a quarter | half | all | four times as much | ratio |\n|---|---|---|---|---|---|")
    for case in cases:
        shares = curve(*case, batches)
        shown = " | ".join(f"{each:.3f}" for each in shares)
        ratio = (shares[3] - shares[2]) / (shares[2] - shares[1])
        print(f"| {case[0]} {case[2]}, {case[1]} {case[3]} | {shown} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
