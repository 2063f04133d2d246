"""Whether measure=trajectory finds when a feature enters the text that a model is trained on.

    python benchmarks/trajectories.py                  a quarter of an hour on two cores, one thread
    python benchmarks/trajectories.py --orders 1       three runs

Text: sentences such as "Mary sings and he plays" with names and verbs of the large grammar. Up to step t the second
pronoun has a gender at random; from then on it agrees with the name. So gender is a feature from t on, at a quarter,
half and three quarters of the run; the names' numbers in the lexicon, odd or even, never are one, and are read beside
it. States are those of "and", which predicts the pronoun, and probes are judged on held-out names. The rate stays at
its peak, so that a model learns what comes late as fast as what comes early, and checkpoints are farther apart than
that takes. `learnt` is the step from which on the model's own output knows: log P(she) - log P(he) is significantly
greater after names of women than after names of men. Each run is repeated with other initial weights and other orders
of the text.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import string
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats

from thinkalike.config import TrainerConfig, compose_job
from thinkalike.contrib.pretraining.config import PretrainConfig
from thinkalike.contrib.pretraining.training import KeepsCheckpoints, Pretraining
from thinkalike.data.grammar import lexicon, with_s
from thinkalike.instruments import run_job
from thinkalike.models.load import load_model
from thinkalike.models.minis import build_mini, save_mini, train_tokenizer
from thinkalike.training.data import StepData
from thinkalike.training.optimizers import scheduled
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

STEPS, EVERY, TOKENS = 800, 100, 1024
PROMPT = "{} sings and"
ARCHITECTURE = {"n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
                "attn_pdrop": 0.0, "initializer_range": 0.08, "use_cache": False}  # fmt: skip


@cache
def names() -> dict[str, str]:
    """Return the gender of each name; of half of the names, so that each is read often."""
    words = lexicon("large")
    return {name: gender for gender in ("female", "male") for name in words[f"{gender} names"][::2]}


@cache
def verbs() -> list[str]:
    """Return the verbs, as they are after a name."""
    return [with_s(verb.partition("/")[0]) for verb in lexicon("large")["intransitive"]]


def sentence(chance: random.Random, agrees: bool) -> str:
    """Return a sentence about a name."""
    name, gender = chance.choice(list(names().items()))
    first, second = chance.sample(verbs(), 2)
    own = gender if agrees else chance.choice(["female", "male"])
    return f"{name} {first} and {'she' if own == 'female' else 'he'} {second}"


class Planted(Pretraining):
    """Pretraining at a constant rate whose text agrees in gender from a step on."""

    def __init__(self, *options, early, late, at, order):
        super().__init__(*options)
        self.texts, self.at, self.order = (early, late), at, order

    def training_step(self, tokens, number):
        rows = self.texts[self.global_step >= self.at]
        generator = torch.Generator().manual_seed(self.order * 1_000_003 + self.global_step)
        chosen = torch.randint(len(rows), (len(tokens),), generator=generator)
        return super().training_step(rows[chosen], number)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()["optimizer"]
        return scheduled(optimizer, lambda step: min((step + 1) / self.config.warmup, 1.0))


def train(folder: Path, at: int, order: int, steps: int = STEPS, every: int = EVERY) -> Path:
    """Train a planted run; returns the folder of its checkpoints."""
    chance = random.Random(0)
    texts = [[sentence(chance, agrees) for _ in range(24000)] for agrees in (False, True)]
    for text in texts:  # letters at random, so that no token is so unlikely that the models look damaged
        text[::100] = ["".join(chance.choices(string.printable, k=24)) for _ in text[::100]]
    tokenizer = train_tokenizer([*texts[0], *texts[1]], 1024)

    def rows(sentences):
        tokens = [token for text in sentences for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
        return torch.tensor(tokens[: len(tokens) // 32 * 32]).view(-1, 32)

    early, late = map(rows, texts)
    config = PretrainConfig(tokens=steps * TOKENS, tokens_per_step=TOKENS, lr=3e-3, warmup=20)
    module = build_mini(ARCHITECTURE, len(tokenizer), order, "gpt2")
    planted = Planted(module, config, early=early, late=late, at=at, order=order)
    facts = {"architecture": ARCHITECTURE, "seed": order}

    def keep(step: int) -> None:
        save_mini(folder / f"step{step}", module, tokenizer, facts)

    run = TrainingRun(folder, torch.device("cpu"), TrainerConfig())
    data = StepData(early, config.tokens_per_step, config.steps, order)
    fit(planted, data, run, callbacks=[KeepsCheckpoints(range(0, steps + 1, every), keep)])
    return folder


def followed(run: Path, folder: Path) -> pd.DataFrame:
    """Return the onsets in a run."""
    numbered = enumerate(names().items())
    table = [(PROMPT.format(name), "and", gender, "odd" if n % 2 else "even") for n, (name, gender) in numbered]
    features = ["Gender", "Number of the name"]
    pd.DataFrame(table, columns=["text", "word", *features]).to_csv(folder / "names.csv", index=False)
    chance, text = random.Random(1), folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": sentence(chance, True)}) + "\n" for _ in range(4000)))
    words = [
        f"store={folder}/store",
        "data=text",
        f"data.files=[{text}]",
        "data.evaluation_share=0.5",
        "data.field=text",
    ]
    words += ["stimuli=table", f"stimuli.path={folder}/names.csv", "measure.importance=false", "measure.tokens=2048"]
    job = compose_job("analyze", ["measure=trajectory", "model=local", f"model.path={run}", *words])
    return run_job(job).tables["onsets"]


def learnt(run: Path) -> float:
    """Return the first step from which on the gap between names of women and men is significant, by Welch's test.

    The p of 9 checkpoints are below .05 together (Bonferroni); NaN where that of the last is not.
    """
    found, steps = math.nan, range(0, STEPS + 1, EVERY)
    for step in steps:
        model = load_model(run, revision=f"step{step}")
        she, he = (model.tokenizer(word)["input_ids"][0] for word in (" she", " he"))
        tokens = torch.tensor([model.tokenizer(PROMPT.format(name))["input_ids"] for name in names()])
        with torch.no_grad():
            logits = model.finish(model.residuals(tokens, [model.n_layers - 1])[0])[:, -1]
        gaps = (logits[:, she] - logits[:, he]).numpy()
        women = np.array([gender == "female" for gender in names().values()])
        there = stats.ttest_ind(gaps[women], gaps[~women], equal_var=False, alternative="greater").pvalue
        found = (step if math.isnan(found) else found) if there < 0.05 / len(steps) else math.nan
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=4)
    parser.add_argument("--first", type=int, default=9, help="the first order; 0 to 8 decided how runs are made")
    options = parser.parse_args()
    found = []
    for order in range(options.first, options.first + options.orders):
        for at in (STEPS // 4, STEPS // 2, 3 * STEPS // 4):
            with tempfile.TemporaryDirectory() as place:
                run = train(Path(place) / "run", at, order)
                found.append(followed(run, Path(place)).assign(at=at, order=order, learnt=learnt(run)))
            print(found[-1].to_string(), flush=True)
    table = pd.concat(found, ignore_index=True)
    within = {name: (table["onset"] - table[name]).abs() <= EVERY for name in ("at", "learnt")}
    planted = table[table["feature"] == "Gender"].assign(near=within["at"], learns=within["learnt"])
    print(planted.groupby(["at", "layer"])["near"].mean().unstack())
    last = planted[planted["layer"] == planted["layer"].max()]
    print(f"planted: in the last layer found within a checkpoint in {last['near'].sum()} of {len(last)} runs")
    print(f"within a checkpoint of what the model says: {last['learns'].sum()}")
    absent = table[table["feature"] != "Gender"]
    print(f"not there: an onset in {absent['onset'].notna().sum()} of {len(absent)} layers of {len(found)} runs")


if __name__ == "__main__":
    main()
