"""Autoencoders in the files of SAELens: read as they were written, refused where they are not whole."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from thinkalike.contrib.sae.measures import SparseAutoencoder, carried
from thinkalike.contrib.sae.saelens import load_sae, save_sae
from thinkalike.errors import ModelError
from thinkalike.measures import AffineMap

PYTHON = "THINKALIKE_SAELENS"  # environment variable: the interpreter of an environment that has sae_lens


def sae_of(k: int | None) -> SparseAutoencoder:
    """One that was carried over, so that its directions have different norms."""
    up, down = (AffineMap(torch.randn(*shape), torch.randn(shape[0])) for shape in ((9, 6), (6, 9)))
    return carried(SparseAutoencoder.random(6, 20, k), up, down)


def rewrite(folder, tensors=None, **settings) -> None:
    """Change the files of an autoencoder; None leaves a tensor or a setting out."""
    path = folder / "cfg.json"
    config = {key: value for key, value in (json.loads(path.read_text()) | settings).items() if value is not None}
    path.write_text(json.dumps(config))
    weights = load_file(folder / "sae_weights.safetensors") | (tensors or {})
    save_file({name: each for name, each in weights.items() if each is not None}, folder / "sae_weights.safetensors")


@pytest.mark.parametrize("k", [4, None])
def test_what_was_written_is_read(tmp_path, k):
    sae = sae_of(k)
    save_sae(sae, tmp_path / "here", model_name="gpt2", hook_name="blocks.2.hook_resid_post")
    found = load_sae(tmp_path / "here")
    for a, b in zip(sae.parameters(), found.sae.parameters(), strict=True):
        assert torch.equal(a, b)
    assert found.sae.k == k
    assert (found.metadata["model_name"], found.metadata["hook_name"]) == ("gpt2", "blocks.2.hook_resid_post")


def test_what_saelens_computes_in_another_order_is_folded_in(tmp_path):
    sae, states = sae_of(4), torch.randn(30, 9)
    save_sae(sae, tmp_path)
    rewrite(tmp_path, apply_b_dec_to_input=True, rescale_acts_by_decoder_norm=True)
    norms = sae.W_dec.norm(dim=-1)
    before = ((states - sae.b_dec) @ sae.W_enc + sae.b_enc) * norms
    values, places = before.topk(4)
    latents = torch.zeros_like(before).scatter(-1, places, values.relu())
    found = load_sae(tmp_path).sae
    torch.testing.assert_close(found.encode(states), latents, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found(states), latents / norms @ sae.W_dec + sae.b_dec, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tensors", "settings", "message"),
    [
        ({"b_enc": None}, {}, "W_dec, W_enc, b_dec, not"),
        ({"W_gate": torch.zeros(2)}, {}, "W_gate"),
        ({}, {"architecture": "gated"}, "architecture=gated"),
        ({}, {"architecture": "standard", "activation_fn_str": "topk"}, "activation_fn_str=topk"),
        ({}, {"k": None}, "k=None"),
        ({}, {"k": True}, "k=True"),
        ({}, {"d_in": 7}, "shapes"),
        ({"b_enc": torch.zeros(1)}, {}, "shapes"),
        ({"b_dec": torch.full((9,), torch.nan)}, {}, "b_dec has entries that are not finite"),
        ({"W_dec": torch.zeros(20, 9)}, {"rescale_acts_by_decoder_norm": True}, "a direction of zeros"),
        ({"b_dec": torch.zeros(9, dtype=torch.long)}, {}, "float32, torch.int64"),
        ({}, {"apply_b_dec_to_input": "false"}, "neither true nor false"),
    ],
)
def test_autoencoders_of_other_kinds_are_refused(tmp_path, tensors, settings, message):
    save_sae(sae_of(4), tmp_path)
    rewrite(tmp_path, tensors, **settings)
    with pytest.raises(ModelError, match=message):
        load_sae(tmp_path)


SCRIPT = """
import sys
from safetensors.torch import load_file, save_file
from sae_lens import SAE
folder, states, out = sys.argv[1:]
sae = SAE.load_from_disk(folder)
latents = sae.encode(load_file(states)["states"])
save_file({"latents": latents, "rebuilt": sae.decode(latents)}, out)
"""


@pytest.mark.parametrize("k", [4, None])
def test_saelens_opens_a_carried_sae_with_the_same_latents(tmp_path, k):
    python = os.environ.get(PYTHON) or (sys.executable if importlib.util.find_spec("sae_lens") else None)
    if python is None:
        pytest.skip(
            "sae_lens is not here: SAELens 6 needs TransformerLens 3 and this project 4, so it has an environment of "
            f"its own; give that one's python as {PYTHON}"
        )
    sae, states, out = sae_of(k), torch.randn(50, 9), tmp_path / "out.safetensors"
    save_sae(sae, tmp_path / "sae", model_name="gpt2", hook_name="blocks.2.hook_resid_post")
    save_file({"states": states}, tmp_path / "states.safetensors")
    command = [python, "-c", SCRIPT, str(tmp_path / "sae"), str(tmp_path / "states.safetensors"), str(out)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert run.returncode == 0, run.stderr
    theirs = load_file(out)
    torch.testing.assert_close(theirs["latents"], sae.encode(states).detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(theirs["rebuilt"], sae(states).detach(), rtol=1e-6, atol=1e-6)
