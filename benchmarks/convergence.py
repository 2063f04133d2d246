"""Whether `upper_bound_of_gain` covers what three times the steps gain: ten pairs of minis, three layers each.

    python benchmarks/convergence.py                       one thread, about an hour
    python benchmarks/convergence.py --store convergence   keeps the results, so that a second call goes on
    python benchmarks/convergence.py --steps 20            by the default recipe but for the number of steps

Each pair is stitched by the default recipe, and once more with three times the steps. A layer is covered where the
penalty falls by no more than the first fit had said; one that had no bound is not counted.
"""

from __future__ import annotations

import tempfile

import pandas as pd
from measuring import options_of

from thinkalike.config import compose_job
from thinkalike.instruments import run_job

FIRST, SPREAD = "layers=[[0,0],[1,1],[2,2]]", "layers=[[0,0],[2,2],[4,4]]"
PAIRS = {
    ("gelu-3l-mini", "solu-3l-mini"): FIRST,
    ("solu-3l-mini", "gelu-3l-mini"): FIRST,
    ("gelu-3l-mini-s1", "gelu-3l-mini"): FIRST,
    ("solu-3l-mini-s1", "solu-3l-mini"): FIRST,
    ("gelu-4l-mini", "solu-4l-mini"): FIRST,
    ("solu-4l-mini", "gelu-3l-mini"): FIRST,
    ("neox-4l-mini", "neox-5l-mini"): FIRST,
    ("neox-5l-mini", "neox-6l-mini"): SPREAD,
    ("gpt2-mini", "gpt2-mini-s1"): SPREAD,
    ("mamba-mini", "gpt2-mini"): SPREAD,
}
TIMES = 3


def fitted(source: str, target: str, layers: str, store: str, times: int, steps: int) -> pd.DataFrame:
    """Return the table of a pair, by the default recipe with so many times these steps; 0: its own."""
    words = [f"model={source}", f"model@target={target}", layers, f"store={store}", "logger=none", "threads=1"]
    job = compose_job("train", words)
    more = [f"stitch.steps={times * (steps or job.stitch.steps)}"] if times > 1 or steps else []
    return run_job(compose_job("train", [*words, *more])).table


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        options, found = options_of(__doc__, store=folder, steps=0), []
        for (source, target), layers in PAIRS.items():
            short, long = (fitted(source, target, layers, options.store, times, options.steps) for times in (1, TIMES))
            for before, after in zip(short.itertuples(), long.itertuples(), strict=True):
                gained = before.penalty - after.penalty
                if before.upper_bound_of_gain == before.upper_bound_of_gain:
                    found.append((gained <= before.upper_bound_of_gain, (source, target)))
                print(
                    f"{source} → {target} {before.source_layer}: {before.penalty:.4f}, {after.penalty:.4f} with "
                    f"{TIMES} times the steps: gained {gained:+.4f}, said {before.upper_bound_of_gain:+.4f}",
                    flush=True,
                )
    missed = [pair for covered, pair in found if not covered]
    print(f"{len(found) - len(missed)} of {len(found)} layers with a bound are covered")


if __name__ == "__main__":
    main()
