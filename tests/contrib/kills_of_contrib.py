"""Kill jobs of contrib at any moment, as tests/faults/kills.py does with those of the core.

python tests/contrib/kills_of_contrib.py 20
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "helpers"), str(TESTS / "faults")]

import kills  # noqa: E402
from kills import TEXT_OF_LOSSES  # noqa: E402

import thinkalike.contrib.papers  # noqa: E402, F401 (what its jobs import, once for all children)

MINI = "model=gelu-3l-mini model.architecture.n_layers=1 model.architecture.d_model=32 model.architecture.d_head=8"
kills.COMMANDS = {
    "pretraining": f"train.py task=pretrain {TEXT_OF_LOSSES} pretrain.tokens=4096 "
    f"pretrain.tokens_per_step=512 pretrain.warmup=1 pretrain.vocabulary=300 model.context=32 {MINI} "
    "trainer.checkpoint_every=3",
    "nli": "train.py task=nli model=bert-mini nli.epochs=1 pairs.fit_pairs=160 pairs.report_pairs=40 "
    "pairs.challenge_pairs=60 nli.context=32 trainer.checkpoint_every=2",
    "sae": f"train.py task=sae model.path={{here}}/a model.context=32 {TEXT_OF_LOSSES} sae.layer=1 "
    "sae.width=48 sae.k=4 sae.tokens=2048 sae.tokens_per_step=64 sae.steps_per_buffer=4 sae.map_tokens=512 "
    "sae.beside=[least_squares] trainer.checkpoint_every=3",
    "experiment": "analyze.py experiment=salle2024/table_s1 scale=mini",
}

if __name__ == "__main__":
    kills.main()
