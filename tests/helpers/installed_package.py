"""The package as users get it: built into a wheel, and installed into a fresh environment."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from conftest import ROOT
from thinkalike.models.checkpoints import ASSETS


def run(*words: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1", "COLUMNS": "140"}
    return subprocess.run(words, cwd=cwd, env=environment, check=check, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> Path:
    """The command of the package in a fresh environment, from a wheel; dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"  # a build leaves files beside the sources
    copy.mkdir()
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip"]
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, copy, cwd=folder)
    (wheel,) = folder.glob("thinkalike-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "fresh", cwd=folder)
    python = folder / "fresh" / "bin" / "python"
    where = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=folder)
    site = Path(where.stdout.strip())
    run(*pip, f"--python={python}", "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    places = "import thinkalike, thinkalike.config as c; print(thinkalike.__file__, c.CONF)"
    assert run(python, "-c", places, cwd=folder).stdout.count(str(site)) == 2, "control: from the wheel"
    return folder / "fresh" / "bin" / "thinkalike"


TAUGHT = "bert-mini-nli"  # a body without a head, whose card states accuracies


def card(name):
    return json.loads((ASSETS / name / "config.json").read_text())
