"""What the pages of the documentation hold: command lines, links, anchors, blocks of code."""

import importlib.util
import itertools
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import IntervalSweep, Override

from conftest import ROOT

SOURCE = ROOT / "src" / "thinkalike" / "contrib"
PAGES_OF_CONTRIB = ROOT / "docs" / "contrib"
PROGRAMS = ("python ", "thinkalike ", "make", "torchrun ", "srun ")
FENCE = re.compile(r"^(`{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")

OF_CONTRIB = (  # the words that contrib adds to command lines, also where it was deleted; its tests compare the names
    "task=nli", "task=pretrain", "task=sae",
    "measure=atlas", "measure=court", "measure=population", "measure=probes", "measure=steering",
    "experiment=", "population=", "pairs=", "stimuli=salle2024", "model=feather-bert",
)  # fmt: skip


class Command(NamedTuple):
    """A command line of a page, without the program: its entry, or what else it calls, and its words."""

    page: str
    entry: str
    words: tuple[str, ...]

    @property
    def overrides(self) -> list[str]:
        """The settings, without those of Hydra's own plugins, which need not be installed."""
        given = [word for word in self.words if ("=" in word and word[0] != "-") or word[:1] in ("+", "~")]
        return [word for word in given if not word.startswith("hydra")]

    @property
    def swept(self) -> bool:
        return bool({"-m", "--multirun"} & set(self.words))


def pages() -> list[Path]:
    """Return all pages that people read, README first."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "src/thinkalike/contrib/README.md")
    own = [ROOT / name for name in names if not is_missing(ROOT / name)]
    return [*own, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]


def is_missing(path: Path) -> bool:
    """Whether a file is one of contrib, and contrib was deleted."""
    return any(path.is_relative_to(folder) and not folder.exists() for folder in (SOURCE, PAGES_OF_CONTRIB))


def needs_contrib(words: Sequence[str]) -> bool:
    """Whether a command line is one of contrib."""
    return any(word.startswith(OF_CONTRIB) for word in words)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands() -> list[Command]:
    """Return every command line of all pages but the changelog, each once, where it stands first."""
    found: dict[tuple[str, tuple[str, ...]], Command] = {}
    has_contrib = SOURCE.exists()
    for page in (each for each in pages() if each.name != "CHANGELOG.md"):
        for line in _lines(page.read_text()):
            for entry, words in _called(line):
                if has_contrib or not (needs_contrib(words) or entry.startswith("docs/contrib/")):
                    found.setdefault((entry, words), Command(name_of(page), entry, words))
    return list(found.values())


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of indented and fenced blocks, those that a backslash divides as one, and code in a sentence."""
    yield from (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", text)))
    fenced = "\n".join(block[0] for block in FENCE.finditer(text))
    indented = "\n".join(line.strip() for line in FENCE.sub("", text).splitlines() if line.startswith("    "))
    for block in (fenced, indented):
        yield from re.sub(r"\\\n\s*", "", block).splitlines()


def _called(line: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what a line calls: train, analyze, results, report, make, or the path of a script; and with which words."""
    line = line.strip().lstrip("!")
    if not line.startswith(PROGRAMS):
        return
    words = [word for word in shlex.split(line, comments=True) if word not in ("...", "…")]
    words = list(itertools.takewhile(lambda word: word not in (">", "|"), words))
    if words[0] in ("torchrun", "srun"):  # what they start
        words = ["python", *itertools.dropwhile(lambda word: not word.endswith(".py"), words)]
    words = words[2:] if words[:3] == ["python", "-m", "thinkalike"] else words
    if words[0] == "make":
        yield "make", tuple(words[1:])
    elif words[0] == "thinkalike" and len(words) > 1:
        yield words[1], tuple(words[2:])
    elif words[0] == "python" and len(words) > 1 and words[1].endswith(".py"):
        entry = words[1].removesuffix(".py")
        yield (entry if entry in ("train", "analyze") else words[1]), tuple(words[2:])


def jobs_of(overrides: list[Override]) -> list[list[str]]:
    """Return the words of jobs of a sweep in which each value of each setting is there once, not of their product."""
    values = [_values(each) for each in overrides]
    return [[own[number % len(own)] for own in values] for number in range(max(map(len, values), default=0))]


def _values(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    value = override.value()
    ends = [value.start] if isinstance(value, IntervalSweep) else list(override.sweep_string_iterator())
    return [f"{override.get_key_element()}={end}" for end in ends[:4]]


def links(text: str) -> Iterator[str]:
    """Yield where the links and pictures of a page lead, without those to other sites."""
    plain = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    for found in LINK.finditer(plain):
        target = found[1] or found[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#{1,6} +(.*?) *$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def script(name: str) -> Any:
    """Return one of the scripts that make pages, as a module."""
    spec = importlib.util.spec_from_file_location(name.rpartition("/")[2], ROOT / "docs" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DOCS = ROOT / "docs"
DOORS = ("train", "analyze")
PLUGGED = [each for each in commands() if any(".py:" in word for word in each.words)]  # test_plugins.py runs them
COMMANDS = [each for each in commands() if each not in PLUGGED]
