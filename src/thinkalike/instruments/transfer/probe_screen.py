"""What a job of probes prints, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from thinkalike.instruments.transfer.carrying import CARRIED, IDENTITY, NATIVE, RANDOM, REFITTED, UNTRAINED
from thinkalike.store import Result

NAME = 13  # columns of a feature's name
SHOWN = {
    "native": NATIVE,
    "carried": CARRIED,
    "refit": REFITTED,
    "random": RANDOM,
    "same": IDENTITY,
    "untr.": UNTRAINED,
}
WIDTHS = {"native": 7, "carried": 8, "refit": 7, "random": 7, "same": 6, "untr.": 6, "chance": 7}
SHARE = 19  # columns of the share beside the accuracy of carried probes
LEGEND = (
    "native: fitted in the target; carried: in the source, read through ψ, with its\n"
    "share of native above chance; refit: fitted on ψ's states; random: through maps\n"
    "of ψ's spectrum; same: through no map; untr.: native in an untrained target"
)


def show_probes(result: Result) -> None:
    """Print the accuracies of each feature, by layer pair and split."""
    stimuli, first = result.provenance["stimuli"], result.table["split"].iloc[0]
    print(f"probes of {stimuli['count']} stimuli of {Path(stimuli['source']).name}; balanced accuracy")
    maps: dict[Any, Any] = result.tables["maps"].set_index(["source_layer", "target_layer"]).to_dict("index")
    for (layer, depth, split), rows in result.table.groupby(["source_layer", "target_layer", "split"], sort=False):
        names, there = rows.iloc[0], set(rows["condition"])
        print(f"\n{names['source']} layer {layer} into {names['target']} layer {depth}, held-out {split}s")
        if split == first:
            unexplained = maps[layer, depth]
            print(f"unexplained of held-out text: φ {unexplained['phi']:.3f}, ψ {unexplained['psi']:.3f}")
        shown = {label: name for label, name in SHOWN.items() if name in there}
        labels = [label.rjust(WIDTHS[label]) + " " * SHARE * (label == "carried") for label in (*shown, "chance")]
        print(f"{'':{NAME}}{''.join(labels)}")
        for feature, own in rows.groupby("feature", sort=False):
            name = str(feature) if len(str(feature)) <= NAME else f"{feature}\n{'':{NAME}}"
            print(f"{name:{NAME}}{_cells(own.set_index('condition').to_dict('index'), shown)}")
    print(LEGEND)


def _cells(rows: Mapping[Any, Any], shown: Mapping[str, str]) -> str:
    cells = [f"{rows[condition]['accuracy']:{WIDTHS[label]}.3f}" for label, condition in shown.items()]
    share, low, high = (rows[CARRIED][f"share_above_chance{end}"] for end in ("", "_low", "_high"))
    kept = f" {share:.2f} [{low:.2f}, {high:.2f}]" if isfinite(share) else ""
    cells.insert(list(shown).index("carried") + 1, kept.ljust(SHARE))
    return "".join(cells) + f"{rows[CARRIED]['chance']:{WIDTHS['chance']}.3f}"
