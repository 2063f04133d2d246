"""Draw all figures of stored results into one folder, and of small runs of the bundled minis.

    python docs/make_figures.py FIGURES --store results [--store MORE]
    python docs/make_figures.py FIGURES --minis               # runs what its store lacks: half an hour

Each result of a store has its figures in FIGURES/KIND-KEY, as PNG and SVG. An experiment of a paper is
drawn from several results while it runs; its figures are copied.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from thinkalike.errors import StoreError
from thinkalike.store import Result
from thinkalike.store.result import open_result

ROOT = Path(__file__).parents[1]
GELU_AND_SOLU = ("model=gelu-3l-mini", "model@target=solu-3l-mini")
GPT2_AND_MAMBA = ("model=gpt2-mini", "model@target=mamba-mini")
TWO_SEEDS = ("model=gpt2-mini", "model@target=gpt2-mini-s1")
ALL_HEADS = ("model.site=z", "model.head=all", "target.site=z", "target.head=all")

# A command for each figure there is.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("train.py", "stitch=least_squares", "stitch.both=true"),
    ("train.py", "stitch=least_squares", "stitch.both=true", "layers=all"),
    ("analyze.py", "measure=cka", "models=[neox-4l-mini,neox-5l-mini,neox-6l-mini]"),
    ("analyze.py", "measure=cka", *GELU_AND_SOLU, "ruler=bits"),
    ("analyze.py", "measure=r2", *GELU_AND_SOLU),
    ("analyze.py", "measure=ruler", *GELU_AND_SOLU),
    ("analyze.py", "measure=distance", *TWO_SEEDS),
    ("analyze.py", "measure=distance", *TWO_SEEDS, *ALL_HEADS),
    ("analyze.py", "measure=diff", *TWO_SEEDS),
    ("analyze.py", "measure=lineage", *TWO_SEEDS),
    ("analyze.py", "measure=lineage", "models=[gelu-3l-mini,gelu-4l-mini,solu-3l-mini]"),
    ("analyze.py", "measure=mlem", *GPT2_AND_MAMBA),
    ("analyze.py", "measure=rsa", *GPT2_AND_MAMBA),
    ("analyze.py", "experiment=trajectory/grammar", "scale=mini"),
    ("analyze.py", "experiment=chen2025/probes", "scale=mini"),
    ("analyze.py", "experiment=chen2025/steering", "scale=mini"),
    ("analyze.py", "experiment=chen2025/sae", "scale=mini"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("figures", type=Path, help="the folder into which the figures are drawn")
    parser.add_argument("--store", type=Path, action="append", default=[], help="a store of results")
    parser.add_argument("--minis", action="store_true", help="run the bundled minis first")
    arguments = parser.parse_args()

    stores = list(arguments.store)
    if arguments.minis:
        store = arguments.figures / "store"
        run_minis(store)
        stores.append(store)
    for store in stores:
        for result in results_in(store):
            folder = arguments.figures / f"{result.kind}-{result.folder.name}"
            draw(result, folder)
            for figure in sorted(folder.glob("*.png")):
                print(figure)


def run_minis(store: Path) -> None:
    """Run the commands; results that the store has are not computed again."""
    for script, *words in COMMANDS:
        command = [sys.executable, str(ROOT / script), *words, f"store={store.absolute()}"]
        subprocess.run(command, check=True, cwd=ROOT)


def results_in(store: Path) -> Iterator[Result]:
    """Yield the finished results of a store, sorted by their folders."""
    for manifest in sorted(store.glob("*/*/manifest.json")):
        try:
            yield open_result(manifest.parent)
        except StoreError as error:
            print(f"{manifest.parent}: {error}", file=sys.stderr)


def draw(result: Result, folder: Path) -> None:
    """Draw the figures of a result, or copy those of an experiment."""
    if result.instrument is not None:
        result.instrument.draw(result, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for file in result.figures:
        shutil.copy(file, folder / file.name)


if __name__ == "__main__":
    main()
