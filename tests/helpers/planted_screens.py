"""Results that no job computed, and what is checked of everything that is printed."""

import re

import numpy as np
import pandas as pd
from rich.cells import cell_len

from stores import layer_pairs, made, profile
from thinkalike.instruments.stitching.table import BASELINES_AND_CONTROLS, short_table
from thinkalike.store import Result

WIDTHS = (60, 67, 80, 100, 160)
UNBOUNDED = 1_000
NAMES = ("gelu-3l-mini", "organisation/solu-3l-mini")
DOCUMENTS = {"documents": 58.0, "effective_sample_size": 47.7}
FRAME = re.compile(r"[\s┃━┏┳┓┡╇┩│─└┴┘├┼┤]+")


def stitched(aligned: bool) -> Result:
    rows = {"source": NAMES[0], "target": NAMES[1], "source_layer": [0, 10], "target_layer": [0, 11]}
    rows["stitch"] = "affine"
    columns = ["stitching_loss", "target_loss", "source_loss", "penalty", "penalty_low", "penalty_high"]
    columns += ["distance", "equivalent_bits", "upper_bound_of_gain"]
    columns += [f"{name}_penalty" for name in BASELINES_AND_CONTROLS]
    if aligned:
        bits = ["target", "source", "penalty"]
        columns += [f"{name}_bits_per_byte" for name in bits]
        columns += [f"penalty_bits_per_byte_{end}" for end in ("low", "high")]
    details = pd.DataFrame(rows | {name: [0.25, 10.75] for name in columns})
    scalars = {f"aligned_{name}": 1 / 3 for name in ("exactly", "earlier", "nowhere")}
    models = [{"name": NAMES[0], "site": "resid_mid"}, {"name": NAMES[1]}]
    provenance = {"data": {"report_tokens": 98816}, "models": models}
    return made(short_table(details), scalars | DOCUMENTS, provenance, details=details)


def compared() -> Result:
    scalars = DOCUMENTS | {"batches": 64.0, "rows_used": 0.9, "largest_calibrated": 0.5, "lowest_p_corrected": 0.05}
    scalars |= {"distance": 0.5, "distance_low": 0.4, "distance_high": 0.6}
    config = {"measure": {"conditional_on": "token", "tokens_per_batch": 1024}}
    return made(layer_pairs(*NAMES, 3, 4), scalars, config=config)


def explained(subjects: bool) -> Result:
    features = ["Part of speech", "Grammatical number", "Tense"]
    table = pd.concat([profile(name, features, 2) for name in NAMES])
    scores = pd.DataFrame({"model": np.repeat(NAMES, 2), "layer": [0, 1] * 2, "score": 0.5, "low": 0.4, "high": 0.6})
    scores = scores.assign(share=[0.5, np.nan] * 2, reference=0.9)
    provenance = {"stimuli": {"count": 400, "source": "words of controlled sentences"}}
    if not subjects:
        return made(table, {}, provenance, scores=scores)
    group = profile("group", features, 2).drop(columns="model")
    means = scores[:2].drop(columns="model").assign(lower=0.1, upper=0.9)
    return made(table, {}, provenance | {"subjects": ["a", "b"]}, scores=scores, group=group, group_scores=means)


def lost() -> Result:
    numbers = DOCUMENTS | {"loss": 3.25, "loss_low": 3.2, "loss_high": 3.3, "unigram_entropy": 5.895}
    table, named = pd.DataFrame([{"model": NAMES[1], **numbers}]), {"models": [{"name": NAMES[1]}]}
    return made(table, numbers, named, config={"data": {"name": "pile-uncopyrighted"}})


def similar() -> Result:
    provenance = {"stimuli": {"count": 24, "source": "words.csv"}}
    return made(layer_pairs(*NAMES, 2, 2), {}, provenance, config={"measure": {"comparator": "spearman"}})


PLANTED = {
    "stitching": lambda: stitched(False),
    "stitching of two tokenizers": lambda: stitched(True),
    **dict.fromkeys(("cka", "mutual_knn", "r2", "procrustes", "jsd"), compared),
    "mlem": lambda: explained(False),
    "rsa": similar,
    "loss": lost,
}


def at(width: int, prints, monkeypatch, capsys) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    prints()
    return capsys.readouterr().out


def tokens(text: str) -> set[str]:
    """The words and numbers of a text, without the frames of tables."""
    return {word.rstrip(":") for word in FRAME.split(text)} - {""}


def check_it_fits(prints, monkeypatch, capsys):
    whole = tokens(at(UNBOUNDED, prints, monkeypatch, capsys))
    for width in WIDTHS:
        shown = at(width, prints, monkeypatch, capsys)
        assert max(map(cell_len, shown.splitlines())) <= width, (width, shown)
        assert tokens(shown) == whole, width


HEADER = re.compile(r"^┃(.+)┃$")


def check_its_form(prints, monkeypatch, capsys, caplog):
    lines = at(80, prints, monkeypatch, capsys).splitlines()
    columns = [len(found[1].split("┃")) for line in lines if (found := HEADER.match(line))]
    assert max(columns, default=0) <= 8
    assert len(lines) <= 30
    assert max(map(cell_len, lines)) <= 80
    assert any(line.rstrip().endswith(".") for line in lines if not line.startswith(("┃", "│"))), lines
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len({message.partition(":")[2][:12] for message in said}), "no warning twice"


def check_dry_run(cli, tmp_path, script, words, seen):
    run = cli(script, *words, "dry_run=true", f"store={tmp_path}/store")
    assert seen in " ".join(run.stdout.split())
    assert "dry run: nothing was loaded" in run.stdout
    assert "results:" not in run.stdout
    assert not (tmp_path / "store").exists()
