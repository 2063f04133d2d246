"""Draw the five pictures of docs/concepts/ideas.md.

python docs/make_ideas.py [--store results]

Two of the pictures show measured numbers. The store must hold the results of these two commands:

python train.py
python analyze.py measure=ruler model=./smollm2 model@target=./gemma3-270m

docs/make_real_models.py makes the two folders. Two further pictures are diagrams, and the last is a
simulation.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pandas as pd
import torch

from thinkalike.measures.bootstrap import bootstrap_interval
from thinkalike.store.result import Result, open_result

IMAGES = Path(__file__).parent / "images"

# All pictures have one width, so that their letters have one size on the page.
WIDTH = 480

# Colours that can be told apart on white and on black paper, and by readers who do not see red or green.
INK = "#1f2430"
GREY = "#6b7280"
PALE = "#e5e7eb"
SOURCE = "#0072b2"
TARGET = "#d55e00"
STITCH = "#009e73"

# On a dark page the card is dark, too. Words, lines and dots take a lighter colour; boxes keep theirs, as
# their words are white.
DARK_CARD = "#272a35"
ON_DARK = {
    INK: "#e5e7eb",
    GREY: "#a3a9b5",
    PALE: "#3f4454",
    SOURCE: "#56b4e9",
    TARGET: "#f08c3a",
    STITCH: "#2bbf93",
}

SYNTHETIC_DOCUMENTS = 40
TOKENS_PER_DOCUMENT = 50
SIMULATED_EXPERIMENTS = 24

INTERPOLATION_STEPS = 24


@dataclass
class Picture:
    """Shapes on a card, WIDTH wide and `height` high, as SVG.

    The card is white, or dark where the reader's system is. The reader's browser chooses the font. A
    text must fit in DejaVu Sans, too, which is wider than Helvetica and Arial, and is what many a Linux
    has.
    """

    title: str
    height: int
    shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, *, colour: str = INK, size: int = 13, anchor: str = "start") -> None:
        """Write words whose baseline begins, has its middle or ends at (x, y)."""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, *, fill: str, words: str = "") -> None:
        """Draw a rectangle, with white words in its middle."""
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{fill}"/>'
        )
        if words:
            self.text(x + width / 2, y + height / 2 + 4.5, words, colour="#ffffff", anchor="middle")

    def line(
        self, x0: float, y0: float, x1: float, y1: float, *, colour: str = GREY, width: float = 1.5, dash: str = ""
    ) -> None:
        """Draw a line from (x0, y0) to (x1, y1)."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"'
            f' stroke-width="{width}"{dashes}/>'
        )

    def arrow(self, x0: float, y0: float, x1: float, y1: float, *, colour: str = GREY) -> None:
        """Draw an arrow from (x0, y0) to (x1, y1)."""
        self.line(x0, y0, x1, y1, colour=colour)
        angle = math.atan2(y1 - y0, x1 - x0)
        for turn in (2.6, -2.6):
            self.line(x1, y1, x1 + 7 * math.cos(angle + turn), y1 + 7 * math.sin(angle + turn), colour=colour)

    def dot(self, x: float, y: float, *, colour: str, radius: float = 4) -> None:
        """Draw a filled circle around (x, y)."""
        self.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>')

    def save(self, name: str) -> None:
        """Write the picture to docs/images."""
        body = "\n".join(self.shapes)
        (IMAGES / f"{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img"'
            f' font-family="Helvetica, Arial, sans-serif">\n<title>{escape(self.title)}</title>\n{dark_style()}\n'
            f'<rect class="card" width="{WIDTH}" height="{self.height}" rx="8" fill="#ffffff"/>\n{body}\n</svg>\n'
        )


def dark_style() -> str:
    """Return the style of a picture on a dark page."""
    rules = [f".card {{ fill: {DARK_CARD}; }}"]
    for light, dark in ON_DARK.items():
        rules.append(f'text[fill="{light}"], circle[fill="{light}"] {{ fill: {dark}; }}')
        rules.append(f'line[stroke="{light}"] {{ stroke: {dark}; }}')
    return "<style>@media (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}</style>"


def draw_cut() -> None:
    """Draw how a model is cut at a layer, and the proof that the cut changes nothing."""
    picture = Picture("A model is cut into a head and a tail, and the cut is checked", 210)
    picture.text(16, 28, "The whole model", colour=GREY)
    _draw_blocks(picture, y=40, colours=[SOURCE] * 6)
    picture.arrow(364, 56, 386, 56)
    picture.text(392, 61, "logits")

    picture.text(16, 106, "Its head, up to block 2, and its tail", colour=GREY)
    _draw_blocks(picture, y=118, colours=[SOURCE] * 3, first=0)
    picture.arrow(190, 134, 224, 134, colour=STITCH)
    picture.text(207, 126, "h", colour=STITCH, anchor="middle")
    _draw_blocks(picture, y=118, colours=[SOURCE] * 3, first=3, x=230)
    picture.arrow(404, 134, 426, 134)
    picture.text(432, 139, "logits")
    picture.text(WIDTH / 2, 188, "Both ways must give the same logits, or the model is refused.", anchor="middle")
    picture.save("idea-cut")


def _draw_blocks(picture: Picture, *, y: float, colours: Sequence[str], first: int = 0, x: float = 16) -> None:
    for number, colour in enumerate(colours):
        picture.box(x + number * 58, y, 54, 32, fill=colour, words=f"block {first + number}")


@dataclass(frozen=True)
class StitchLosses:
    """What a stitch at one layer costs, in nats per token, and what its baselines cost."""

    source: str
    target: str
    layer: int
    target_loss: float
    stitching_loss: float
    identity_penalty: float
    token_mean_penalty: float


def draw_stitch(losses: StitchLosses) -> None:
    """Draw a stitch, and its loss beside its three baselines."""
    picture = Picture("A stitch joins the head of one model to the tail of another", 320)
    picture.box(16, 40, 80, 32, fill=SOURCE, words=f"blocks 0-{losses.layer}")
    picture.text(16, 28, f"{losses.source} (source)", colour=SOURCE)
    picture.arrow(100, 56, 138, 56)
    picture.box(142, 40, 60, 32, fill=STITCH, words="map φ")
    picture.arrow(206, 56, 244, 56)
    picture.box(248, 40, 136, 32, fill=TARGET, words=f"blocks {losses.layer + 1} and later")
    picture.text(248, 28, f"{losses.target} (target)", colour=TARGET)
    picture.arrow(388, 56, 410, 56)
    picture.text(416, 61, "loss")
    picture.text(16, 94, "Only φ is trained. Both models stay frozen.", colour=GREY)

    bars = [
        ("the target alone", losses.target_loss, TARGET),
        ("stitched, φ trained", losses.stitching_loss, STITCH),
        ("token-mean baseline", losses.target_loss + losses.token_mean_penalty, GREY),
        ("identity baseline", losses.target_loss + losses.identity_penalty, GREY),
    ]
    longest = max(value for _, value, _ in bars)
    for number, (label, value, colour) in enumerate(bars):
        top = 116 + number * 36
        picture.text(156, top + 17, label, anchor="end")
        length = 230 * value / longest
        picture.box(166, top, length, 24, fill=colour)
        picture.text(166 + length + 6, top + 17, f"{value:.2f}")

    left = 166 + 230 * losses.target_loss / longest
    right = 166 + 230 * losses.stitching_loss / longest
    picture.line(left, 108, left, 264, colour=INK, dash="3 3")
    picture.line(right, 140, right, 264, colour=INK, dash="3 3")
    penalty = losses.stitching_loss - losses.target_loss
    picture.text(right, 281, f"penalty {penalty:.2f} nats per token", anchor="middle")
    picture.text(16, 306, "Next-token loss, nats per token, on held-out documents", colour=GREY, size=12)
    picture.save("idea-stitch")


def draw_residual() -> None:
    """Draw what is left of a state when token, position and earlier tokens are known."""
    picture = Picture("What is left of a state when token, position and earlier tokens are known", 250)
    picture.text(16, 28, "A state of model A at the word “bank”", colour=SOURCE)
    pieces = [("token", 150, GREY), ("position", 74, GREY), ("earlier tokens", 112, GREY), ("rest", 104, SOURCE)]
    _draw_pieces(picture, 40, pieces)
    picture.text(16, 114, "The state of model B at the same word", colour=TARGET)
    pieces = [("token", 118, GREY), ("position", 60, GREY), ("earlier tokens", 130, GREY), ("rest", 132, TARGET)]
    _draw_pieces(picture, 126, pieces)
    picture.arrow(408, 76, 398, 122, colour=STITCH)
    picture.arrow(392, 122, 402, 76, colour=STITCH)
    picture.text(384, 103, "linear map: R²", colour=STITCH, anchor="end")
    for number, words in enumerate(
        [
            "Grey: the mean of the token, the mean of the position, and what",
            "a linear map predicts from averages of earlier embeddings.",
            "Any network that reads the text has these. Only the rest is compared.",
        ]
    ):
        picture.text(16, 192 + 20 * number, words, size=13)
    picture.save("idea-residual")


def _draw_pieces(picture: Picture, y: float, pieces: Sequence[tuple[str, float, str]]) -> None:
    x = 16.0
    for words, width, colour in pieces:
        picture.box(x, y, width - 2, 32, fill=colour, words=words)
        x += width


@dataclass(frozen=True)
class Measured:
    """A value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, row: pd.Series) -> Measured:
        """Return the value of a row of a table."""
        return cls(float(row["value"]), float(row["low"]), float(row["high"]))


@dataclass(frozen=True)
class RulerReading:
    """R² of a pair of layers, of calibration points of the source, and of the control."""

    source: str
    target: str
    source_layer: int
    target_layer: int
    pair: Measured
    bits: float
    local_mixing: Measured
    points: dict[float, Measured]  # by bits
    untrained: Measured
    documents: int


def draw_ruler(reading: RulerReading) -> None:
    """Draw R² of a model with copies of itself against their bits, and where a second model falls."""
    picture = Picture("The ruler: how many bits does a copy have that is as similar?", 340)
    left = 70.0
    right = 450.0
    top = 50.0
    bottom = 260.0
    untrained_at = 120.0
    gap = (170.0, 182.0)  # beyond it there are bits
    ticks = (0, 0.2, 0.4, 0.6)
    highest = ticks[-1]

    def across(bits: float) -> float:
        return 232 + 160 * (bits - 3)

    def up(value: float) -> float:
        return bottom - (bottom - top) * value / highest

    def draw_measured(x: float, measured: Measured, colour: str) -> None:
        """Draw a dot with the bar of its interval."""
        picture.line(x, up(measured.low), x, up(measured.high), colour=colour, width=2)
        for end in (measured.low, measured.high):
            picture.line(x - 5, up(end), x + 5, up(end), colour=colour, width=2)
        picture.dot(x, up(measured.value), colour=colour)

    title = f"Residual R² of {reading.source}, layer {reading.source_layer}, with …"
    picture.text(16, 28, title, colour=GREY)
    for tick in ticks:
        colour = PALE if tick else GREY
        picture.line(left, up(tick), gap[0], up(tick), colour=colour, width=1)
        picture.line(gap[1], up(tick), right, up(tick), colour=colour, width=1)
        picture.text(left - 8, up(tick) + 4.5, f"{tick:g}", anchor="end", colour=GREY)
    for end in gap:
        picture.line(end - 3, bottom + 5, end + 3, bottom - 5, colour=GREY, width=1)
    for bits in reading.points:
        picture.text(across(bits), bottom + 20, f"{bits:g}", anchor="middle", colour=GREY)
    picture.text(untrained_at, bottom + 20, "untrained", anchor="middle", colour=GREY)
    picture.text((gap[1] + right) / 2, bottom + 42, "bits per weight of the copy", anchor="middle", colour=GREY)

    points = sorted((bits, measured.value) for bits, measured in reading.points.items())
    for lower, upper in itertools.pairwise(points):
        # Every second step is drawn, so that the line is dashed: nothing was measured there.
        steps = list(itertools.pairwise(interpolated(lower, upper)))
        for (start, start_value), (end, end_value) in steps[::2]:
            picture.line(across(start), up(start_value), across(end), up(end_value), colour=SOURCE)
    for bits, measured in reading.points.items():
        draw_measured(across(bits), measured, SOURCE)
    draw_measured(untrained_at, reading.untrained, SOURCE)
    picture.text(across(4) - 12, up(0.55), "rounded copies of it", colour=SOURCE, anchor="end")
    picture.text(across(4) - 12, up(0.55) + 17, "(dashed: interpolation)", colour=SOURCE, anchor="end", size=12)

    x = across(reading.bits)
    y = up(reading.pair.value)
    picture.line(left, y, x, y, colour=TARGET, dash="4 3")
    picture.line(x, y, x, bottom, colour=TARGET, dash="4 3")
    draw_measured(x, reading.pair, TARGET)
    name = f"{reading.target}, layer {reading.target_layer}: {reading.pair.value:.2f},"
    picture.text(left + 8, y - 8, name, colour=TARGET)
    picture.text(left + 8, y + 18, f"as a {reading.bits:.1f}-bit copy", colour=TARGET)

    control = up(reading.local_mixing.value)
    words = f"local-mixing control: {reading.local_mixing.value:.2f}"
    picture.line(left, control, right, control, colour=GREY, dash="2 4")
    picture.text(left + 8, control - 6, words, colour=GREY)
    intervals = f"Bars: 95 % intervals over {reading.documents} documents"
    picture.text(16, 328, intervals, colour=GREY, size=12)
    picture.save("idea-ruler")


def interpolated(lower: tuple[float, float], upper: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the curve between two calibration points (bits, R²), along which artanh √R² is a straight line."""
    start = math.atanh(math.sqrt(max(lower[1], 0)))
    end = math.atanh(math.sqrt(max(upper[1], 0)))
    curve = []
    for step in range(INTERPOLATION_STEPS + 1):
        share = step / INTERPOLATION_STEPS
        bits = lower[0] + share * (upper[0] - lower[0])
        curve.append((bits, math.tanh(start + share * (end - start)) ** 2))
    return curve


def draw_intervals() -> None:
    """Draw intervals over documents and over tokens of the same simulated experiments."""
    picture = Picture("Intervals over documents contain the true value, and intervals over tokens do not", 300)
    generator = torch.Generator().manual_seed(0)
    for column, name in enumerate(["over documents", "over tokens"]):
        left = 16 + column * 232
        centre = left + 108
        picture.line(centre, 50, centre, 262, colour=INK, dash="3 3")
        picture.text(centre, 22, name, anchor="middle")
        picture.text(centre, 42, "true value", anchor="middle", colour=GREY, size=12)

    covering = [0, 0]
    for experiment in range(SIMULATED_EXPERIMENTS):
        document_effects = torch.randn(SYNTHETIC_DOCUMENTS, 1, generator=generator)
        noise = torch.randn(SYNTHETIC_DOCUMENTS, TOKENS_PER_DOCUMENT, generator=generator)
        values = document_effects + noise  # (documents, tokens); the true mean is 0
        intervals = [_interval(values.mean(1)), _interval(values.flatten())]
        for column, (low, high) in enumerate(intervals):
            centre = 16 + column * 232 + 108
            y = 56 + experiment * 8.6
            holds_truth = low <= 0 <= high
            covering[column] += holds_truth
            colour = STITCH if holds_truth else TARGET
            picture.line(centre + 160 * low, y, centre + 160 * high, y, colour=colour, width=3)
    for column, count in enumerate(covering):
        words = f"{count} of {SIMULATED_EXPERIMENTS} contain it"
        picture.text(16 + column * 232 + 108, 284, words, anchor="middle")
    picture.save("idea-intervals")


def _interval(values: torch.Tensor) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of values (n,)."""
    ones = torch.ones(len(values), dtype=torch.float64)
    interval = bootstrap_interval(values.double(), ones)
    return float(interval.low), float(interval.high)


def stitch_losses(store: Path) -> StitchLosses:
    """Return layer 1 of the result of `python train.py`."""
    details = _result(store, "stitching", "gelu-3l-mini", "solu-3l-mini").tables["details"]
    row = details[details["source_layer"].astype(int) == 1].iloc[0]
    return StitchLosses(
        source=row["source"],
        target=row["target"],
        layer=1,
        target_loss=float(row["target_loss"]),
        stitching_loss=float(row["stitching_loss"]),
        identity_penalty=float(row["identity_penalty"]),
        token_mean_penalty=float(row["token_mean_penalty"]),
    )


def ruler_reading(store: Path) -> RulerReading:
    """Return the middle layer of the ruler of SmolLM2 and Gemma."""
    result = _result(store, "ruler", "smollm2", "gemma3-270m")
    table = result.details
    row = table.iloc[len(table) // 2]
    calibration = result.tables["calibration_points"]
    is_of_row = (calibration["model"] == row["source"]) & (calibration["layer"] == row["source_layer"])
    of_row = calibration[is_of_row].set_index("calibration_point")
    copies = of_row[of_row["bits"].notna()]
    return RulerReading(
        source="SmolLM2",
        target="Gemma",
        source_layer=int(row["source_layer"]),
        target_layer=int(row["target_layer"]),
        pair=Measured.of(row),
        bits=float(row["source_equivalent_bits"]),
        local_mixing=Measured.of(of_row.loc["local mixing"]),
        points={float(copy["bits"]): Measured.of(copy) for _, copy in copies.iterrows()},
        untrained=Measured.of(of_row.loc["untrained"]),
        documents=int(result.scalars["documents"]),
    )


def _result(store: Path, kind: str, source: str, target: str) -> Result:
    """Return the newest result of a kind about two models."""
    records = sorted((store / kind).glob("*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in records:
        result = open_result(path.parent)
        first = result.details.iloc[0]
        if (first["source"], first["target"]) == (source, target):
            return result
    raise SystemExit(f"{store} has no {kind} of {source} and {target}: run the commands at the top of this script")


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("results"))
    store = parser.parse_args().store
    draw_cut()
    draw_stitch(stitch_losses(store))
    draw_residual()
    draw_ruler(ruler_reading(store))
    draw_intervals()


if __name__ == "__main__":
    main()
