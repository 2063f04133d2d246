"""The settings of a stitch and of its training, and the recipes that decide what a command line leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from thinkalike.config import RecipeJob, SettingValues, TrainConfig, setting
from thinkalike.config.parts import TOKENS_AT_ONCE
from thinkalike.config.schema import STEPS, Checked
from thinkalike.errors import ConfigError, one_of
from thinkalike.plugins import is_plugin
from thinkalike.stitches.kinds import CLOSED, MOST_SEEDS, TRAINED

Init = Literal["auto", "identity", "least_squares", "procrustes", "reduced_rank"]
STARTS = {"orthogonal": "procrustes", "low_rank": "reduced_rank"}  # of stitch.init=auto; else least_squares
OF_TRAINING = {"init", "loss", "floor", "optimizer", "whiten", "lr", "lr_multiples", "seeds", "momentum",
               "scale_lr_by_momentum", "weight_decay", "clip", "schedule", "warmup"}  # fmt: skip
# steps between warm-up and the first average: with fewer, 4 of 15 fits of minis went on to speed up
SETTLED = 5
RATES, WHITENED_RATE = {"sgd": 1.0, "adam": 0.18}, 10.0  # stitch.lr where none is given


def whole_rows(tokens: int, context: int) -> int:
    """Return how many tokens the whole rows among so many tokens hold; a training reads no part of a row."""
    return tokens // context * context


@dataclass
class StitchConfig(Checked, part="stitch"):
    """The map φ and its training."""

    kind: str = "linear"  # of φ: trained, a closed form, or the identity
    # where φ has a LayerNorm
    norm: Literal["none", "pre", "post"] = setting("none", by_recipe=True)
    rank: int = setting(16, least=1, most=10**6)  # of low_rank and reduced_rank
    # where training starts; auto: at the closed form of the kind
    init: Init = setting("identity", by_recipe=True)
    # λ of the closed forms least_squares and reduced_rank; null: it is chosen by cross-validation over documents
    ridge: float | None = setting(None, least=0)
    # cross_entropy: of the next token | kl: to the target's output | mse: to its state |
    # penultimate: ‖s - t‖² / ‖t‖² to its state after the last block | alignment: the mean of that from the site on
    loss: Literal["cross_entropy", "kl", "mse", "penultimate", "alignment"] = setting("cross_entropy", by_recipe=True)
    controls: bool = False  # report closed forms, shuffled and random sources beside φ
    # also fit the target to itself by the same recipe; null: where the identity is not the optimum of that
    floor: bool = setting(None, by_recipe=True, not_in_key_as=True)
    both: bool = False  # also fit the target to the source
    # sgd: with Nesterov momentum, as in brown2023 | adam: with decoupled decay
    optimizer: Literal["sgd", "adam"] = setting("sgd", by_recipe=True)
    # steps of sgd in coordinates of unit variance of the source's states; of linear and affine
    whiten: bool = setting(False, by_recipe=True)
    # peak, for adam times √width; null: 1 for sgd, 10 for sgd in whitened coordinates, 0.18 for adam
    lr: float | None = setting(None, above=0, most=1e37)
    lr_multiples: list[float] = setting(list, above=0, most=1e6)  # of further rates, tried in the same pass
    # fits whose order of the text differs; the table is of their mean
    seeds: int = setting(1, least=1, most=MOST_SEEDS)
    momentum: float = setting(0.9, least=0, below=1)  # of sgd
    scale_lr_by_momentum: bool = True  # the rate that sgd gets is lr * (1 - momentum)
    # pulls φ to where it begins; that of a plugin to zero
    weight_decay: float = setting(1e-3, by_recipe=True, least=0)
    clip: float = setting(1.0, least=0)  # gradient norm per stitch; 0: none
    # of the rate; average: it stays, and φ is the mean over the last half of the steps
    schedule: Literal["linear", "cosine", "average", "tuned_lens"] = setting("linear", by_recipe=True)
    # of training; of closed forms: batches that they read
    steps: int = setting(2000, by_recipe=True, least=0, most=STEPS)
    warmup: int = setting(200, by_recipe=True, least=0, most=STEPS)  # steps in which the rate rises
    # target tokens that a step reads
    tokens_per_step: int = setting(16384, by_recipe=True, least=2, most=TOKENS_AT_ONCE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_plugin(self.kind):
            one_of("stitch.kind", self.kind, (*TRAINED, *CLOSED, "identity"))
        if None not in (self.norm, self.init, self.loss, self.optimizer, self.whiten, self.steps, self.warmup):
            self._decide()

    def _decide(self) -> None:
        """Decide, when nothing is left open, what depends on the other settings; refuse what contradicts them."""
        if self.kind in CLOSED and self.norm != "none":
            raise ConfigError(f"stitch.norm={self.norm} does not go with stitch={self.kind}, which has no LayerNorm")
        has_closed_form = self.norm == "none" and self.kind in (*TRAINED, *CLOSED)
        if self.init == "auto":
            start = STARTS.get(self.kind, "least_squares")
            self.init = start if has_closed_form else "identity"  # type: ignore[assignment]
        elif self.init != "identity" and not has_closed_form:
            raise ConfigError(f"stitch.init={self.init} does not go with stitch={self.kind} and norm={self.norm}")
        if self.whiten and not self._may_whiten:
            raise ConfigError("stitch.whiten=true is for sgd and for stitch=linear and affine without a LayerNorm")
        is_zero = self.norm == "none" and self.kind in TRAINED and self.loss != "cross_entropy"
        if self.floor and is_zero:
            raise ConfigError(f"stitch.floor=true needs stitch.loss=cross_entropy: by {self.loss} the identity is best")
        self.floor = not is_zero if self.floor is None else self.floor
        if not self.trained:
            self.warmup = 0
        if self.kind == "identity" and not self.trained:
            self.steps = 0
        elif self.steps < 1:
            raise ConfigError(f"stitch.steps={self.steps} must be at least 1 for a {self.kind} stitch")
        elif self.warmup >= self.steps:
            raise ConfigError(f"stitch.warmup={self.warmup} must be less than stitch.steps={self.steps}")

    @property
    def _may_whiten(self) -> bool:
        return self.norm in (None, "none") and self.kind in ("linear", "affine") and self.optimizer in (None, "sgd")

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        """Return the project's recipe, which takes a third of the steps to what they are after, or that of brown2023.

        Linear and affine maps are trained by sgd in whitened coordinates and averaged, others by adam. The recipe of
        brown2023 is sgd on the cross-entropy, with a LayerNorm before φ.
        """
        mini, isometry = job.is_mini, self.kind in ("orthogonal", "low_rank")
        if self.kind in CLOSED:
            return {"steps": 64 if mini else 256, "tokens_per_step": 4096 if mini else 16384}
        small, rise = (170, 17) if isometry else (300, 30)
        steps, rise = (small, rise) if mini else (2000, 200)
        per_step = 4096 if isometry or self.kind == "identity" else 2048
        values: dict[str, Any] = {
            "steps": steps,
            "warmup": min(rise, (steps if self.steps is None else self.steps) // 10),
            "tokens_per_step": per_step if mini else 16384,
        }
        if self.kind == "identity":
            return values
        if job.recipe == "paper":
            return values | {"norm": "pre"}
        own = {"optimizer": "adam", "schedule": "cosine"} if isometry else {"weight_decay": 0.0, "schedule": "average"}
        return values | {"init": "auto", "loss": "kl", "whiten": self._may_whiten} | own

    def settings_read(self) -> frozenset[str]:
        read = super().settings_read()
        if not self.trained:
            read -= OF_TRAINING
        elif self.optimizer != "sgd":
            read -= {"momentum", "scale_lr_by_momentum"}
        if self.kind == "identity" and not self.trained:
            read -= {"steps", "tokens_per_step"}

        maps = {self.kind, self.init}  # φ, and the one that training begins with
        if not maps & {"low_rank", "reduced_rank"}:
            read -= {"rank"}
        has_ridge = self.controls or maps & {"least_squares", "reduced_rank"}
        return read if has_ridge else read - {"ridge"}

    @property
    def peak(self) -> float:
        """Return `lr`, or the default of the optimiser where it is null."""
        if self.lr is not None:
            return self.lr
        return WHITENED_RATE if self.whiten else RATES[self.optimizer]

    @property
    def is_closed(self) -> bool:
        """Whether φ itself is a closed form."""
        return self.kind in CLOSED

    @property
    def has_closed_forms(self) -> bool:
        """Whether any map is a closed form: φ, its start, its coordinates, or a control."""
        return self.is_closed or self.controls or self.init != "identity" or bool(self.whiten)

    @property
    def has_settled(self) -> bool:
        """Whether the steps are enough for a bound on what more would gain, see `left_to_gain`.

        The first average, from a quarter of the steps on, has to begin `SETTLED` steps after
        warm-up.
        """
        return self.steps // 4 - self.warmup >= SETTLED

    @property
    def trained(self) -> bool:
        """Whether there is anything to train; closed forms read `steps` batches, once."""
        return self.kind in TRAINED or is_plugin(self.kind) or (self.kind == "identity" and self.norm != "none")


def fewest_steps(warmup: int | None = None) -> int:
    """Return the number of steps from which on all are enough for `has_settled`.

    Args:
        warmup: the steps in which the rate rises; None: the recipe decides them, a tenth of all
        steps.
    """
    if warmup is not None:
        return 4 * (warmup + SETTLED)
    # A tenth is rounded down, so that 28 steps are enough, and 30 are not.
    return 1 + max(steps for steps in range(20 * SETTLED) if steps // 4 - steps // 10 < SETTLED)


@dataclass
class StitchJob(TrainConfig):
    """All that `task=stitch` needs to know."""

    stitch: StitchConfig = field(default_factory=StitchConfig)
