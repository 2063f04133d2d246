"""The smallest part of docs/make_real_models.py, where `fetch` has been: noise that begins at layer 10 of SmolLM2."""

import importlib.util
import json
from pathlib import Path

import pytest

from thinkalike.config import compose_job
from thinkalike.forecast import forecast
from thinkalike.store import finished

SCRIPT = Path(__file__).parents[1] / "docs" / "make_real_models.py"
CACHE = Path.home() / ".cache" / "thinkalike-real"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_noise_in_layers_10_to_14_is_seen_to_begin_at_10(tmp_path):
    if not (CACHE / "smollm2-noise10-14").exists():
        pytest.skip("the packages are not there: python docs/make_real_models.py fetch")
    specification = importlib.util.spec_from_file_location("make_real_models", SCRIPT)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    for each in ("smollm2", "smollm2-noise10-14"):
        (tmp_path / each).symlink_to(CACHE / each)
    script.run(tmp_path, ["distance-noise10-14"])
    (made,) = json.loads((tmp_path / "done.json").read_text()).values()
    assert made["status"] == 0, made
    assert made["memory"] < 3e9
    words = [*made["command"][1:], f"store={tmp_path}/none"]
    assert forecast(compose_job("analyze", words)).bytes == pytest.approx(made["memory"], rel=0.2), "dry_run's word"
    (result,) = finished(tmp_path / "store", "distance")
    table = result.table.set_index("source_layer")["value"]
    assert (table[:9] < 1e-5).all()
    assert 0.02 < table[10] < table[12] < table[14] < 0.2
    assert "layer 10" in made["screen"]
