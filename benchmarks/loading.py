"""What loading a large checkpoint takes: random weights in the shape of Llama 3.2 1B, sharded, in bfloat16.

    python benchmarks/loading.py                    # the whole shape, 2.5 GB in a temporary folder
    python benchmarks/loading.py --layers 4         # a quarter of it

The peak is that of a process of its own, over what it held before it loaded: its private memory (RssAnon), and what it
has mapped of the files (RssFile), which the machine can take back at any time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

SHAPE = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
GB = 1e9


def write(folder: Path, layers: int) -> None:
    """Write a random checkpoint in shards of 1 GB, with the tokenizer of a mini."""
    import transformers

    from thinkalike.models.minis import train_tokenizer

    shape = transformers.LlamaConfig(**SHAPE, num_hidden_layers=layers)
    torch.set_default_dtype(torch.bfloat16)
    module = transformers.LlamaForCausalLM(shape)
    module.save_pretrained(folder, max_shard_size="1GB")
    train_tokenizer(["a few words of text"], 300).save_pretrained(folder)


class Peak(threading.Thread):
    """The largest memory of this process while it runs, by kind, in bytes; looked at every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before, self.running = self.now(), True
        self.most = dict.fromkeys(("RssAnon", "RssFile", "both"), 0)

    @staticmethod
    def now() -> dict[str, int]:
        """Return the memory of this moment."""
        lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        sizes = {kind: 1024 * int(lines[kind].split()[0]) for kind in ("RssAnon", "RssFile")}
        return sizes | {"both": sum(sizes.values())}

    def run(self) -> None:
        while self.running:
            for kind, size in self.now().items():
                self.most[kind] = max(self.most[kind], size - self.before[kind])
            time.sleep(0.005)


def load(folder: Path) -> None:
    """Load the checkpoint, run CKA of two batches, and print what both took."""
    import transformers  # noqa: F401

    from thinkalike.config import ModelConfig
    from thinkalike.measures import CKA
    from thinkalike.models.load import load_model

    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    peak, began = Peak(), time.perf_counter()
    peak.start()
    model = load_model(ModelConfig(name="llama", path=str(folder), dtype="bfloat16"))
    seconds, loaded = time.perf_counter() - began, dict(peak.most)
    metric, layers = CKA(model.n_layers, model.n_layers), list(range(model.n_layers))
    for number in range(2):
        tokens = torch.randint(model.vocabulary, (4, 128), generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            states = [state.flatten(0, 1).float() for state in model.residuals(tokens, layers)]
        metric.update(states, states, None, number)
    value = metric.compute().value
    peak.running = False
    facts = {f"load {kind}": round(most / size, 3) for kind, most in loaded.items()}
    facts |= {f"with CKA {kind}": round(most / size, 3) for kind, most in peak.most.items()}
    diagonal = round(float(value.diagonal().mean()), 6)
    print(json.dumps({"checkpoint GB": round(size / GB, 2), "load s": round(seconds, 1), "diagonal": diagonal} | facts))


def main() -> None:
    """Write a checkpoint and load it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="load the checkpoint that is there")
    arguments = parser.parse_args()
    if arguments.folder:
        load(arguments.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), arguments.layers)
        subprocess.run([sys.executable, __file__, "--folder", folder], check=True)


if __name__ == "__main__":
    main()
