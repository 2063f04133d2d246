"""What every experiment takes at the papers' scale, before any of it is run: writes docs/contrib/scale.md.

python docs/contrib/make_scale.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from thinkalike.config import compose_job, options
from thinkalike.forecast import PEAKS, SHARE_OF_PEAK, Forecast, forecast, shapes_of
from thinkalike.memory import readable

HERE = Path(__file__).parent
PYTHIAS = ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
STEPS = [0, *(2**n for n in range(10)), *range(1000, 144_000, 1000)]  # of every Pythia's checkpoints on the hub
FASTER = ("model.dtype=bfloat16",)

PAGE = """# What a run takes

What would an experiment cost on a GPU? `python docs/contrib/make_scale.py` makes this page from the same formulas as
`dry_run=true`: nothing is loaded or downloaded. The sizes of models are those of their published `config.json`.

    python analyze.py experiment=brown2023/figure3 dry_run=true
    python train.py model=solu-3l model@target=gelu-3l layers=all dry_run=true
    python analyze.py measure=cka 'models=[gpt2,mamba-130m]' dry_run=true

**FLOPs** are those of the passes of models: two for each multiplication with its addition, as torch counts them
in a model without weights. A step of training a model counts as three passes, a step of training through frozen
weights as two. Comparisons of states, fits of maps and probes, and autoencoders are added. Passes that several
jobs share are counted once. **Bytes** are a lower bound: the weights in the dtype of the job, the states of a
batch, and maps with gradients and momenta; on a CPU also the process and its tokenizers.
**Hours** are FLOPs over {share} of a GPU's peak: {peaks} (NVIDIA's data sheets, dense products). Small models, whose
kernels are short, reach less than {share}.

## Experiments, scale=paper, as they stand

| experiment | jobs | models | FLOPs | bytes | {gpus} |
|---|---|---|---|---|{dashes}|
{experiments}

An experiment without jobs uses only stimuli. A trajectory reads the {checkpoints} checkpoints of each Pythia.
Populations have pairs of sentences of about 40 tokens. For the court, only the target's passes are counted.

## All pairs of eight Pythias

CKA of {pairs} pairs of models and of each with itself, 1000 batches of 1024 tokens, by the models' dtype:

| | FLOPs | bytes | {gpus} |
|---|---|---|{dashes}|
{pythias}

Pair by pair, every model runs once for each of its pairs; in one pass it runs once. In float32 all models together need
more than 80 GB, and so do the two largest without the rest; in bfloat16 all fit.
"""


def page() -> str:
    """Return the text of docs/contrib/scale.md."""
    asked = {name: compose_job("analyze", [f"experiment={name}"]) for name in sorted(options("experiment"))}
    revisions = [f"step{step}" for step in STEPS]
    with (
        mock.patch("thinkalike.instruments.trajectory.checkpoints._revisions_on_hub", return_value=revisions),
        mock.patch("thinkalike.forecast.pick_device", return_value="cuda"),  # whatever machine makes the page
    ):
        rows = [_experiment(name, forecast(config, looks_up=False)) for name, config in asked.items()]
        plans = {"float32": _pythias(()), "bfloat16": _pythias(FASTER)}
    return PAGE.format(
        share=f"{SHARE_OF_PEAK:.0%}",
        peaks="; ".join(_peaks(gpu) for gpu in PEAKS),
        gpus=" | ".join(f"hours, {gpu} 80 GB" for gpu in PEAKS),
        dashes="|".join(["---"] * len(PEAKS)),
        experiments="\n".join(rows),
        checkpoints=len(STEPS),
        pairs=len(PYTHIAS) * (len(PYTHIAS) - 1) // 2,
        pythias="\n".join(line for dtype, plan in plans.items() for line in _both_ways(dtype, *plan)),
    )


def _peaks(gpu: str) -> str:
    numbers = (f"{peak / 1e12:g} TFLOP/s in {name}" for name, peak in PEAKS[gpu].items())
    return f"{gpu} {', '.join(numbers)}"


def _experiment(name: str, plan: Forecast) -> str:
    models = ", ".join(shape.name for shape in shapes_of(plan.jobs))
    hours = [_hours(plan.hours(gpu)) for gpu in PEAKS]
    cells = [name, str(len(plan.jobs)), models, f"{plan.flops:.2g}", readable(plan.bytes), *hours]
    return _row(cells) if plan.jobs else _row([name, "0", "", "", "", *("" for _ in PEAKS)])


def _pythias(words: Sequence[str]) -> tuple[Forecast, Forecast]:
    """Return what all pairs take, each model with itself among them: in one pass, and one after the other."""
    names = [f"pythia-{size}-deduped" for size in PYTHIAS]
    common = ["measure=cka", "scale=paper", *words]
    pairs = forecast(compose_job("analyze", [*common, f"models=[{','.join(names)}]"]), looks_up=False)
    own = [forecast(compose_job("analyze", [*common, f"model={name}"]), looks_up=False) for name in names]
    jobs = [job for plan in (pairs, *own) for job in plan.jobs]
    return Forecast([jobs]), Forecast([[job] for job in jobs])


def _both_ways(dtype: str, together: Forecast, apart: Forecast) -> list[str]:
    rows = []
    for how, plan in (("one pass", together), ("pair by pair", apart)):
        hours = [_hours(plan.hours(gpu)) for gpu in PEAKS]
        rows.append(_row([f"{dtype}, {how}", f"{plan.flops:.2g}", readable(plan.bytes), *hours]))
    return rows


def _hours(hours: float) -> str:
    return "< 0.01" if hours < 0.01 else f"{hours:.2g}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the page."""
    (HERE / "scale.md").write_text(page())


if __name__ == "__main__":
    main()
