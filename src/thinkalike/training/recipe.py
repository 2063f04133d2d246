"""The settings of a stitch and of its training, and the recipes that decide what is left open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thinkalike.advice import named_setting
from thinkalike.config import RecipeJob, SettingValues, TrainConfig, setting
from thinkalike.config.parts import TOKENS_AT_ONCE
from thinkalike.config.schema import STEPS, Checked
from thinkalike.errors import ConfigError, one_of
from thinkalike.plugins import is_plugin
from thinkalike.stitches.kinds import CLOSED, MOST_SEEDS, TRAINED

Init = Literal["auto", "identity", "least_squares", "procrustes", "reduced_rank"]
# where stitch.init=auto starts a stitch of each kind; all other kinds start at least_squares
CLOSED_FORM_OF_KIND: dict[str, Init] = {"orthogonal": "procrustes", "low_rank": "reduced_rank"}
# the settings that only matter if something is trained
OF_TRAINING = {
    "init",
    "loss",
    "floor",
    "optimizer",
    "whiten",
    "lr",
    "lr_multiples",
    "seeds",
    "momentum",
    "scale_lr_by_momentum",
    "weight_decay",
    "clip",
    "schedule",
    "warmup",
}
# steps between warm-up and the first average: with fewer, 4 of 15 fits of minis went on to speed
# up
SETTLING_STEPS = 5
# stitch.lr where none is given, by optimiser, and in whitened coordinates
DEFAULT_RATES = {"sgd": 1.0, "adam": 0.18}
WHITENED_RATE = 10.0


def whole_rows(tokens: int, context: int) -> int:
    """Return the largest number of tokens, at most `tokens`, that are whole rows of `context`.

    A training step reads no part of a row.
    """
    return tokens // context * context


@dataclass
class StitchConfig(Checked, part="stitch"):
    """The map φ and its training."""

    # form of the map φ: trained by gradient descent, solved in closed form, or the identity
    kind: str = "linear"
    # LayerNorm before (pre) or after (post) the map
    norm: Literal["none", "pre", "post"] = setting("none", by_recipe=True)
    # rank of the maps low_rank and reduced_rank
    rank: int = setting(16, least=1, most=10**6)
    # map at which training starts; auto: the closed-form solution of the same kind
    init: Init = setting("identity", by_recipe=True)
    # ridge penalty λ of least_squares and reduced_rank; null: chosen by cross-validation over
    # documents
    ridge: float | None = setting(None, least=0)
    # what training minimises: cross_entropy of the next token; kl to the target's predictions; mse
    # to the target's state; penultimate: relative squared error of the target's last state;
    # alignment: the mean of that error over all blocks above the stitch
    loss: Literal["cross_entropy", "kl", "mse", "penultimate", "alignment"] = setting(
        "cross_entropy", by_recipe=True
    )
    # also report closed-form maps, and maps from shuffled and random sources
    controls: bool = False
    # also stitch the target into itself by the same recipe; null: only where the best map is not
    # known to be the identity
    floor: bool = setting(None, by_recipe=True, not_in_key_as=True)
    # also stitch in the opposite direction, from the target into the source
    both: bool = False
    # sgd: with Nesterov momentum, as in Brown et al. (2023); adam: with decoupled weight decay
    optimizer: Literal["sgd", "adam"] = setting("sgd", by_recipe=True)
    # for sgd with linear and affine maps: train in coordinates in which the source's states have
    # unit variance
    whiten: bool = setting(False, by_recipe=True)
    # peak learning rate, for adam times √width; null: 1 for sgd, 10 for sgd with whiten, 0.18 for
    # adam
    lr: float | None = setting(None, above=0, most=1e37)
    # multiples of the learning rate that are also tried, in the same pass over the text
    lr_multiples: list[float] = setting(list, above=0, most=1e6)
    # number of fits, each with the text in a different order; the table has their mean
    seeds: int = setting(1, least=1, most=MOST_SEEDS)
    # momentum of sgd
    momentum: float = setting(0.9, least=0, below=1)
    # multiply the learning rate of sgd by (1 - momentum)
    scale_lr_by_momentum: bool = True
    # weight decay towards the initial map (towards zero for a map of your own)
    weight_decay: float = setting(1e-3, by_recipe=True, least=0)
    # largest gradient norm of each stitch; 0: no clipping
    clip: float = setting(1.0, least=0)
    # learning-rate schedule; average: a constant rate, and φ is the mean over the last half of the
    # steps
    schedule: Literal["linear", "cosine", "average", "tuned_lens"] = setting(
        "linear", by_recipe=True
    )
    # number of training steps; for closed forms the number of batches that they read
    steps: int = setting(2000, by_recipe=True, least=0, most=STEPS)
    # number of steps in which the learning rate rises to its peak
    warmup: int = setting(200, by_recipe=True, least=0, most=STEPS)
    # number of target tokens in a step
    tokens_per_step: int = setting(16384, by_recipe=True, least=2, most=TOKENS_AT_ONCE)

    def __post_init__(self) -> None:
        """Check the kind, and decide what depends on other settings if these are all known.

        A setting that a recipe is to decide is None until then; nothing is decided before.

        Raises:
            ConfigError: The kind is not known, or settings contradict each other.
        """
        super().__post_init__()
        if not is_plugin(self.kind):
            one_of("stitch.kind", self.kind, (*TRAINED, *CLOSED, "identity"))
        decided_by_recipe = (
            self.norm,
            self.init,
            self.loss,
            self.optimizer,
            self.whiten,
            self.steps,
            self.warmup,
        )
        if None not in decided_by_recipe:
            self._decide()

    def _decide(self) -> None:
        """Set `init`, `floor`, `steps` and `warmup` where they were left open to other settings.

        Raises:
            ConfigError: Settings contradict each other.
        """
        if self.kind in CLOSED and self.norm != "none":
            raise ConfigError(
                f"{named_setting('stitch.norm', self.norm)} does not go with "
                f"{named_setting('stitch', self.kind)}, which has no LayerNorm"
            )
        self._decide_init()
        if self.whiten and not self._may_whiten:
            raise ConfigError(
                f"{named_setting('stitch.whiten', True)} is for sgd and "
                f"{named_setting('stitch', 'linear')} and affine without a LayerNorm"
            )
        self._decide_floor()
        self._decide_steps()

    def _decide_init(self) -> None:
        """Replace `init=auto` by the closed form of this kind of map, at which training starts.

        The identity and a map with a LayerNorm or of the user's own have none: `auto` becomes
        `identity`, with which training starts at the usual initial weights.

        Raises:
            ConfigError: `init` names a closed form, and the map has none.
        """
        has_closed_form = self.norm == "none" and self.kind in (*TRAINED, *CLOSED)
        if self.init == "auto":
            self.init = "identity"
            if has_closed_form:
                self.init = CLOSED_FORM_OF_KIND.get(self.kind, "least_squares")
        elif self.init != "identity" and not has_closed_form:
            raise ConfigError(
                f"{named_setting('stitch.init', self.init)} does not go with "
                f"{named_setting('stitch', self.kind)} and norm={self.norm}"
            )

    def _decide_floor(self) -> None:
        """Set `floor` if it was left open: whether the target is also stitched into itself.

        The cost of that stitch is the floor with which the others are compared. It is made unless
        the best map of the target into itself is known to be the identity, as it is for a trained
        map without a LayerNorm and a loss that the identity makes zero.

        Raises:
            ConfigError: `floor` is true, and the identity is known to be best.
        """
        identity_is_best = (
            self.norm == "none" and self.kind in TRAINED and self.loss != "cross_entropy"
        )
        if self.floor and identity_is_best:
            raise ConfigError(
                f"{named_setting('stitch.floor', True)} needs "
                f"{named_setting('stitch.loss', 'cross_entropy')}: by {self.loss} the identity "
                "is best"
            )
        if self.floor is None:
            self.floor = not identity_is_best

    def _decide_steps(self) -> None:
        """Set `warmup` to 0 if nothing is trained, and `steps` to 0 if no text is read either.

        A closed form is not trained, but reads `steps` batches of text.

        Raises:
            ConfigError: `steps` is below 1, or not above `warmup`.
        """
        if not self.trained:
            self.warmup = 0
        if self.kind == "identity" and not self.trained:
            self.steps = 0
        elif self.steps < 1:
            raise ConfigError(
                f"{named_setting('stitch.steps', self.steps)} must be at least 1 for a "
                f"{self.kind} stitch"
            )
        elif self.warmup >= self.steps:
            raise ConfigError(
                f"{named_setting('stitch.warmup', self.warmup)} must be less than "
                f"{named_setting('stitch.steps', self.steps)}"
            )

    @property
    def _may_whiten(self) -> bool:
        """Whether SGD can step in whitened coordinates, as far as the settings are known."""
        is_plain_map = self.norm in (None, "none") and self.kind in ("linear", "affine")
        return is_plain_map and self.optimizer in (None, "sgd")

    @property
    def _is_orthogonal_or_low_rank(self) -> bool:
        """Whether φ is orthogonal or of low rank; the default recipe trains both kinds by Adam."""
        return self.kind in ("orthogonal", "low_rank")

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        """Return the settings of the default recipe, or of the paper's (Brown et al. 2023).

        Closed forms and the identity are not trained; only the amount of text is set for them. The
        paper's recipe is SGD on the cross-entropy with a LayerNorm before φ. The default recipe
        reaches the same loss in a third of the steps. It minimises the KL divergence and
        begins at a closed form if there is one. Orthogonal and low-rank maps are trained by Adam,
        and others by SGD with averaged weights, in whitened coordinates where that is possible.
        """
        values = self._amounts(job)
        if self.kind in CLOSED or self.kind == "identity":
            return values
        if job.recipe == "paper":
            return {**values, "norm": "pre"}  # all other settings of the paper are the defaults
        shared = {"init": "auto", "loss": "kl", "whiten": self._may_whiten}
        if self._is_orthogonal_or_low_rank:
            return {**values, **shared, "optimizer": "adam", "schedule": "cosine"}
        return {**values, **shared, "weight_decay": 0.0, "schedule": "average"}

    def _amounts(self, job: RecipeJob) -> SettingValues:
        """Return how much text a recipe reads: its steps, warm-up steps and tokens per step.

        A closed form reads its batches without training, and has no warm-up. A job of the size of
        a laptop (mini) reads less text than one of the size of the papers.
        """
        if self.kind in CLOSED:
            if job.is_mini:
                return {"steps": 64, "tokens_per_step": 4096}
            return {"steps": 256, "tokens_per_step": 16384}

        steps = 2000
        warmup = 200
        tokens_per_step = 16384
        if job.is_mini:
            steps = 300
            warmup = 30
            tokens_per_step = 2048
            if self._is_orthogonal_or_low_rank:
                steps = 170
                warmup = 17
            if self._is_orthogonal_or_low_rank or self.kind == "identity":
                tokens_per_step = 4096

        # A recipe decides only what the user has left open, but the warm-up must suit the steps.
        steps_of_job = steps
        if self.steps is not None:  # the user has set them
            steps_of_job = self.steps
        return {
            "steps": steps,
            "warmup": min(warmup, steps_of_job // 10),  # at most a tenth of the steps
            "tokens_per_step": tokens_per_step,
        }

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that have an effect, given the values of the others."""
        names = super().settings_read()
        if not self.trained:
            names -= OF_TRAINING
        elif self.optimizer != "sgd":
            names -= {"momentum", "scale_lr_by_momentum"}
        if self.kind == "identity" and not self.trained:
            names -= {"steps", "tokens_per_step"}

        maps = {self.kind, self.init}  # of φ, and of the map that training begins with
        if maps.isdisjoint({"low_rank", "reduced_rank"}):
            names -= {"rank"}
        if not self.controls and maps.isdisjoint({"least_squares", "reduced_rank"}):
            names -= {"ridge"}  # no map is solved with a ridge
        return names

    @property
    def peak(self) -> float:
        """The peak learning rate: the setting `lr`, or the optimiser's default if it is None."""
        if self.lr is not None:
            return self.lr
        if self.whiten:
            return WHITENED_RATE
        return DEFAULT_RATES[self.optimizer]

    @property
    def is_closed(self) -> bool:
        """Whether φ itself is a closed form."""
        return self.kind in CLOSED

    @property
    def has_closed_forms(self) -> bool:
        """Whether any closed form is computed: φ, its start, whitened coordinates or a control."""
        if self.is_closed or self.controls:
            return True
        return self.init != "identity" or bool(self.whiten)

    @property
    def has_settled(self) -> bool:
        """Whether there are enough steps for a bound on what more steps would gain.

        The bound compares the weights averaged over the second quarter of the steps with those
        averaged over the second half. The first average must begin at least `SETTLING_STEPS`
        steps after the warm-up.
        """
        return self.steps // 4 - self.warmup >= SETTLING_STEPS

    @property
    def trained(self) -> bool:
        """Whether φ has weights that are trained by gradient descent.

        Closed forms have none, and the identity only with a LayerNorm.
        """
        if self.kind == "identity":
            return self.norm != "none"
        return self.kind in TRAINED or is_plugin(self.kind)


def fewest_steps(warmup: int | None = None) -> int:
    """Return the number of steps from which on a training is long enough to judge its end.

    N steps are enough for a bound on what more steps would gain (`StitchConfig.has_settled`) if a
    quarter of them, rounded down, is at least `SETTLING_STEPS` more than the steps of the warm-up.
    The result and all larger numbers are enough.

    Args:
        warmup: The warm-up steps; None: a tenth of all steps, rounded down, as in the recipe.
    """
    if warmup is not None:
        return 4 * (warmup + SETTLING_STEPS)
    # Because of the rounding, 28 steps are enough and 30 are not: search the largest number that
    # is not enough.
    too_few = []
    # A quarter less a tenth of N steps is 0.15 N, so numbers far above SETTLING_STEPS / 0.15 are
    # enough.
    for steps in range(20 * SETTLING_STEPS):
        if steps // 4 - steps // 10 < SETTLING_STEPS:
            too_few.append(steps)
    return max(too_few) + 1


@dataclass
class StitchJob(TrainConfig):
    """All that `task=stitch` needs to know."""

    stitch: StitchConfig = field(default_factory=StitchConfig)
