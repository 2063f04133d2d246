"""The kinds of jobs: each class holds what it compares and exactly the settings that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError
from thinkalike.inputs import Model, StimulusTable
from thinkalike.job.instrument import AnyInstrument
from thinkalike.job.lookup import instrument_of_measure, instrument_of_task
from thinkalike.jobs.base import Folder, Job, Layers, Side, TextJob
from thinkalike.plugins import MeasurePlugin, PreparesAndCompares, name_in_memory

# a name on the command line, or an object in memory: a function of two matrices, or a measure
Measure = str | Callable[..., object] | MeasurePlugin | PreparesAndCompares


@dataclass(frozen=True, eq=False)
class Stitch(TextJob):
    """Can the target use what the source computes? Fit a map between their streams at each layer.

    The table has the loss of each stitch, its `penalty` in nats per token with its interval, the
    baselines beside it, the bits of the target where it loses as much, and what more training
    would gain; `tables["details"]` has all columns. Without a target the source is stitched to
    itself. With site="resid_mid" layers are before the MLP of each block. With similarity=True the
    details also say how much of the states of both models is shared.

    >>> few = {"steps": 4, "tokens_per_step": 256, "evaluation_tokens": 2048}
    >>> result = stitch("gelu-3l-mini", layers=[1], **few)
    >>> list(result.table["source_layer"])
    [1]
    """

    SIDES: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Model
    target: Model | None = None
    _: KW_ONLY
    layers: Layers | None = None
    site: str = "resid_post"
    kind: str = "linear"
    norm: str | None = None
    rank: int = 16
    init: str | None = None
    ridge: float | None = None
    loss: str | None = None
    controls: bool = False
    floor: bool | None = None
    both: bool = False
    similarity: bool = False
    optimizer: str | None = None
    whiten: bool | None = None
    lr: float | None = None
    lr_multiples: Sequence[float] = ()
    seeds: int = 1
    momentum: float = 0.9
    scale_lr_by_momentum: bool = True
    weight_decay: float | None = None
    clip: float = 1.0
    schedule: str | None = None
    steps: int | None = None
    warmup: int | None = None
    tokens_per_step: int | None = None
    fit_tokens: int | None = None
    evaluation_tokens: int | None = None
    scale: str = "auto"
    recipe: str = "default"
    seed: int = 0

    @property
    def instrument(self) -> AnyInstrument:
        return instrument_of_task("stitch")


@dataclass(frozen=True, eq=False)
class Compare(TextJob):
    """How similar is every layer of one model to every layer of another?

    Args:
        site: where states are taken, by TransformerLens's names, such as "attn_out", "mlp_out",
            "z" or "resid_mid"; of a list, or of every head of "z" with head="all",
            `tables["components"]` has the values by layer and place.
        measure: its name on the command line, such as cka, mutual_knn, r2 or ruler, or a function
            of two matrices (n, d) and (n, e) to a number, which goes with no `store`.
        estimator: of CKA. With "unbiased", the default, `value` is the ratio of HSICs less the
            bias that a jackknife over documents, or rows of arrays, estimates. The column
            `uncorrected` has the ratio with this bias, which is `thinkalike.cka(X, Y)` of arrays
            in one batch; aggregate="mean_of_ratios" takes no bias off.
        ruler: "bits": `tables["equivalent_bits"]` has what some values are in bits of both models.

    >>> result = compare("gelu-3l-mini", "solu-3l-mini", batches=2, tokens_per_batch=128)
    >>> result.arrays["value"].shape
    (3, 3)
    """

    SIDES: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Side
    target: Side | None = None
    _: KW_ONLY
    measure: Measure = "cka"
    stimuli: StimulusTable | None = None
    layers: Layers | None = None
    site: str | Sequence[str] = "resid_post"
    head: int | str | None = None
    ruler: str | None = None
    batches: int | None = None
    tokens_per_batch: int = 1024
    unit: str = "auto"
    embed: bool = False
    massive: str = "drop"
    skip_first: int = 0
    skip_special_tokens: bool = False
    conditional_on: str | None = None
    null: bool | None = None
    permutations: int | None = None
    estimator: str = "unbiased"
    aggregate: str = "ratio_of_means"
    kernel: str = "linear"
    flatten: str = "token"
    neighbours: int = 10
    kept: float = 0.99
    words: int = 8192
    evaluation_tokens: int | None = None
    features: Sequence[str] | None = None
    scale: str = "auto"
    recipe: str = "default"
    seed: int = 0

    def __post_init__(self) -> None:
        is_measure = isinstance(self.measure, str | MeasurePlugin | PreparesAndCompares)
        if not is_measure and not callable(self.measure):
            raise ConfigError(
                f"measure is {type(self.measure).__name__}: "
                "give a name, such as 'cka', or a function"
            )
        super().__post_init__()

    @property
    def does(self) -> str:
        return self.measure if isinstance(self.measure, str) else name_in_memory(self.measure)

    @property
    def instrument(self) -> AnyInstrument:
        if isinstance(self.measure, str):
            return instrument_of_measure(self.measure)
        # Here and not above: it imports torchmetrics, and with it scipy and matplotlib.
        from thinkalike.instruments.layer_pairs.of_user import instrument_in_memory

        return instrument_in_memory(self.measure)


@dataclass(frozen=True, eq=False)
class Ruler(TextJob):
    """How similar are two models, in bits of a rounded copy?

    The table has for each layer pair what a linear map predicts beyond the word, its position and
    the earlier tokens, and the bits of a copy of either model that is as similar to it.

    Args:
        words: words of held-out text.
        calibration_points: what stands beside copies of fewer bits: "layers" of the model itself,
            states of other "text", or the names of further models.

    >>> result = ruler("gelu-3l-mini", "solu-3l-mini", layers=[[2, 2]], words=8192)
    >>> list(result.table["target_layer"])
    [2]
    """

    SIDES: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Model
    target: Model | None = None
    _: KW_ONLY
    layers: Layers | None = None
    site: str = "resid_post"
    words: int = 8192
    calibration_points: Sequence[str] = ("bits",)
    massive: str = "drop"
    scale: str = "auto"


@dataclass(frozen=True, eq=False)
class Mlem(Job):
    """Which features of words explain their distances in each layer?

    The table has the importance of each feature.
    A list of three recordings or more is one of subjects.

    >>> result = mlem("gpt2-mini", sample=60, features=["Number"], folds=2, references=0)
    >>> sorted(set(result.table["feature"]))
    ['Number']
    """

    SIDES: ClassVar[tuple[str, ...]] = ("model", "target")

    model: Side | list[Side]
    target: Side | None = None
    _: KW_ONLY
    stimuli: StimulusTable | None = None
    features: Sequence[str] | None = None
    kinds: Mapping[str, object] | None = None
    columns: Mapping[str, str | None] | None = None
    token: str = "last"
    sample: int | None = None
    groups: str | None = None
    layers: Layers | None = None
    site: str | Sequence[str] = "resid_post"
    head: int | str | None = None
    weights: str = "diagonal"
    alphas: Sequence[float] | None = None
    difference: str = "indicator"
    missing: str = "own_level"
    scale: str = "auto"
    folds: int = 5
    together: str = "sentence"
    permutations: int = 5
    conditional_on: str | None = None
    interactions: Sequence[Sequence[str]] = ()
    null: int = 0
    references: int = 3
    distance: str = "euclidean"
    embed: bool = False
    massive: str = "drop"
    skip_first: int = 0
    recipe: str = "default"
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.model, list) and self.target is not None:
            raise ConfigError(
                "target= has no effect beside a list of models or recordings; "
                "add the target to the list"
            )
        super().__post_init__()

    def sides(self) -> dict[str, object]:
        if isinstance(self.model, list):
            return {f"model[{number}]": side for number, side in enumerate(self.model)}
        return super().sides()


@dataclass(frozen=True, eq=False)
class Rsa(Job):
    """How similar are the distances of stimuli in every two layers?

    With `stimuli`, a list of one or two models, or of arrays with a row for each stimulus, gives a
    `Result`. It does not depend on `features`, which serve to leave out columns of a table that
    cannot be read as features. Without stimuli, arrays of states (n, d) give the matrix of
    `thinkalike.measures.rsa`; `others` are by default the same arrays.

    >>> rsa([torch.randn(9, 4), torch.randn(9, 3)]).shape
    torch.Size([2, 2])
    >>> len(rsa(["gpt2-mini", "bert-mini"], stimuli="crossed", sample=40, layers=[0, 1]).table)
    16
    """

    SIDES: ClassVar[tuple[str, ...]] = ("models",)

    models: Sequence[Side]
    _: KW_ONLY
    stimuli: StimulusTable
    distance: str = "euclidean"
    comparator: str = "spearman"
    features: Sequence[str] | None = None
    kinds: Mapping[str, object] | None = None
    columns: Mapping[str, str | None] | None = None
    token: str = "last"
    sample: int | None = None
    groups: str | None = None
    layers: Layers | None = None
    site: str | Sequence[str] = "resid_post"
    head: int | str | None = None
    permutations: int = 0
    noise: str = "shrinkage"
    resamples: int = 1000
    embed: bool = False
    massive: str = "drop"
    skip_first: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.models, list | tuple):
            raise ConfigError("rsa on stimuli takes one list of models, and no others")
        super().__post_init__()

    def sides(self) -> dict[str, object]:
        return {f"models[{number}]": side for number, side in enumerate(self.models)}


@dataclass(frozen=True, eq=False)
class Diff(TextJob):
    """What did a change do to a model?

    The result says whether, where and on what it shows, and within which margin.

    Args:
        taught: whether to say what the changed model was taught; "only" leaves out the questions
            that take longer, such as which modules carry the change.

    >>> diff("gelu-3l-mini", "gelu-3l-mini").scalars["kl"]
    0.0
    """

    SIDES: ClassVar[tuple[str, ...]] = ("base", "changed")

    base: Model
    changed: Model
    _: KW_ONLY
    tokens: int = 2048
    tokens_per_part: int = 512
    outputs: int = 4
    null: str = "random_change"
    steps: int = 40
    taught: bool | str = True
    contrast: str | None = None
    path: str | None = None
    pairs: int = 2048
    other: str | None = None
    margin: Mapping[str, float] | None = None


@dataclass(frozen=True, eq=False)
class Loss(TextJob):
    """How well does a model predict held-out text?

    The table has its loss beside the entropy of single tokens.

    >>> result = loss("gelu-3l-mini", evaluation_tokens=2048)
    >>> list(result.table["model"])
    ['gelu-3l-mini']
    """

    model: Model
    _: KW_ONLY
    evaluation_tokens: int | None = None
    scale: str = "auto"


@dataclass(frozen=True, eq=False)
class Lineage(Job):
    """Does the target derive from the source, and which of its blocks?

    An exact test of weights, which reads no text. The table has the hidden units in common
    positions for every two blocks, with p-values under independent training. `tables["origins"]`
    has the origin of each block of the target. With similar_units=False copies whose units were
    reordered are not looked for.

    >>> result = lineage("bert-mini", "bert-mini-nli")
    >>> result.scalars["blocks_with_origin"]
    6.0
    """

    SIDES: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Model
    target: Model
    _: KW_ONLY
    similar_units: bool = True


@dataclass(frozen=True, eq=False)
class Trajectory(TextJob):
    """How do representations form over the checkpoints of a run, a folder or a model of the hub?

    >>> trajectory("gelu-3l-mini")
    Traceback (most recent call last):
    thinkalike.errors.ConfigError: ...
    """

    model: Folder | ModelConfig
    _: KW_ONLY
    stimuli: StimulusTable | None = None
    steps: str | Sequence[int] = "all"
    checkpoints: str = "*"
    tokens: int = 4096
    importance: bool = True
    folds: int = 5
    least: int = 20
    permutations: int = 99
    features: Sequence[str] | None = None
    kinds: Mapping[str, object] | None = None
    columns: Mapping[str, str | None] | None = None
    token: str = "last"
    sample: int | None = None
    site: str = "resid_post"
    head: int | None = None
    fit_tokens: int | None = None
    evaluation_tokens: int | None = None
    seed: int = 0
