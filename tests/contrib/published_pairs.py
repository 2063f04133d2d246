"""Files of pairs as they are published."""

import json
from pathlib import Path

import pandas as pd
from classifiers import of_the_hub


def published(rows) -> pd.DataFrame:
    names = ["sentence1", "sentence2", "gold_label", "heuristic", "subcase"]
    frame = pd.DataFrame(rows, columns=names[: len(rows[0])])
    return frame.assign(pairID=[f"ex{row}" for row in range(len(rows))], sentence1_parse='(ROOT (S "))')


def write(rows, path: Path) -> Path:
    """As it is published in the format of the ending."""
    if path.suffix == ".parquet":
        of_the_hub(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        lines = [json.dumps(record) for record in published(rows).to_dict("records")]
        path.write_text("\n".join(lines) + "\n")
    else:
        frame = published(rows)
        lines = ["\t".join(frame), *("\t".join(row) for row in frame.to_numpy())]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
