"""An instrument as small as can be, and its configuration."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch

from thinkalike.config import (
    JobConfig,
    MeasureConfig,
    TrainerConfig,
    setting,
)
from thinkalike.job import Instrument, Outcome, Work


@dataclass
class ToyMeasure(MeasureConfig):
    kind: str = "toy"
    size: int = 3


@dataclass
class Config(JobConfig):
    """A small configuration."""

    measure: ToyMeasure = field(default_factory=ToyMeasure)
    other: ToyMeasure = field(default_factory=ToyMeasure)
    screen: str = setting("short", in_key=False)
    trainer: TrainerConfig = setting(TrainerConfig, in_key=False)


class Toy(Instrument, kind="toy", reads=("measure", "seed"), config=Config):
    """Draws some numbers."""

    def __init__(self, content: str = "text", break_off: BaseException | None = None):
        self.content, self.break_off, self.calls = content, break_off, []

    def inputs(self, config):
        return {"text": self.content}

    def run(self, config, work: Work) -> Outcome:
        self.calls.append("run")
        work.opened.callback(lambda: self.calls.append("closed"))
        kept = work.resume("half")
        start = 0 if kept is None else kept.entry("done", int)
        numbers = torch.randn(config.measure.size)
        if self.break_off:
            work.keep("half", {"done": 2, "numbers": numbers})
            raise self.break_off
        table = pd.DataFrame({"number": numbers.numpy(), "start": start})
        return Outcome(table, {"mean": float(numbers.mean())}, {"numbers": numbers.numpy()}, models=[{"name": "toy"}])

    def draw(self, result, folder: Path) -> None:
        folder.mkdir()
        (folder / "toy.svg").write_text(str(len(result.table)))
        self.calls.append("drawn")

    def show(self, result) -> None:
        print(f"{len(result.table)} numbers")


def config(store: Path, **changes) -> Config:
    return Config(store=str(store), **changes)
