"""All that is the same for every source of a court: the target's side of each comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import Source
from thinkalike.contrib.court.token_profile import token_features
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.evaluation.forward import next_token_losses, states_onwards
from thinkalike.instruments.ruler.calibration_points import greatest_at_each_pair
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.losses import token_kl
from thinkalike.measures.residual import ResidualStates
from thinkalike.measures.ridge import Predictor, both_ways
from thinkalike.states.mixing import BAGS, CONTROLS, TokenMixing

# Networks that only mix earlier tokens. Bags are among them, as states lose only their
# leading components: of a whole bag of decay .9, .054 is left in source code, where the other
# networks leave .049 at most.
MIXING = (*BAGS, *CONTROLS)

StateMap = Callable[[Tensor], Tensor]


class TargetRun(NamedTuple):
    """What the target itself computes for one batch of the evaluation text.

    Attributes:
        states: Its states at the cut and after each later block, (b, t, d) each.
        losses: The losses of the s = t - 1 next tokens, in nats.
    """

    states: list[Float[Tensor, "b t d"]]
    losses: Float[Tensor, "b s"]


class StitchedRun(NamedTuple):
    """How the target changes when it resumes from mapped states: means over evaluation tokens.

    Attributes:
        penalty: The loss minus the target's own, in nats.
        kl: The KL divergence of the target's own output from the stitched one's, in nats.
        distances: |h - t| / |t| at the cut and after each later block, where t is the target's own
            state.
    """

    penalty: float
    kl: float
    distances: list[float]


class TargetSide(NamedTuple):
    """The target's side of R² at the inner tokens that are compared.

    Attributes:
        residual: Takes token, position and linear mixing out of states.
        beyond: Predicts what is left of the target's states.
        plain: Predicts the target's states as they are, on the same rows.
        mixing: R² of the target and the network of local mixing that shares most with it, in both
            directions.
    """

    residual: ResidualStates
    beyond: Predictor
    plain: Predictor
    mixing: Float[Tensor, "1 2 r"]


def row_batches(rows: Int[Tensor, "rows t"]) -> Sequence[Int[Tensor, "b t"]]:
    """Return the rows in batches that a model reads at once."""
    return rows.long().split(max(BATCH_TOKENS // rows.shape[1], 1))


def at_inner_tokens(states: Shaped[Tensor, "b t ..."]) -> Shaped[Tensor, " n ..."]:
    """Drop the first and the last token of each row, and join the rows into one axis.

    The first token has no context, and no token follows the last one.
    """
    return states[:, 1:-1].flatten(0, 1)


def inner_states(
    states_of: Callable[[Tensor], Sequence[Tensor]], rows: Int[Tensor, "rows t"]
) -> list[Float[Tensor, "n d"]]:
    """Compute states of rows of tokens batch by batch, and return those of the inner tokens.

    Inner tokens are all but the first and the last of each row. The states are on the CPU.

    Args:
        states_of: Computes one or more tensors of states (b, t, d) of a batch of rows.
        rows: All rows of tokens.
    """
    by_batch = []
    for batch in row_batches(rows):
        by_batch.append([at_inner_tokens(states).cpu() for states in states_of(batch)])
    by_tensor = zip(*by_batch, strict=True)
    return [torch.cat(batches) for batches in by_tensor]


@dataclass(frozen=True, eq=False)
class Bench:
    """The materials of a court, with everything that is computed once for all sources.

    Inner tokens are all but the first and the last of each row.
    """

    materials: Materials
    _target_sides: dict[bytes, TargetSide] = field(default_factory=dict)

    @cached_property
    def report_states(self) -> Float[Tensor, "n d"]:
        """The target's states at the inner tokens of the evaluation text."""
        return self._target_states(self.materials.evaluation_rows)

    @cached_property
    def fit_states(self) -> Float[Tensor, "m d"]:
        """The target's states at the inner tokens of the rows to fit on."""
        return self._target_states(self.materials.fit_rows)

    def _target_states(self, rows: Int[Tensor, "rows t"]) -> Float[Tensor, "n d"]:
        """Return the target's states at the inner tokens of rows."""
        (states,) = inner_states(lambda batch: [self.materials.target_states(batch)], rows)
        return states

    @cached_property
    def _mixing_states(self) -> dict[str, Float[Tensor, "n d"]]:
        """The states of networks that only mix earlier tokens, by name, at the inner tokens."""
        mixing = TokenMixing(self.materials.target)
        states = inner_states(
            lambda rows: mixing.residuals(rows, MIXING), self.materials.evaluation_rows
        )
        return dict(zip(MIXING, states, strict=True))

    @torch.no_grad()
    def target_side(self, is_compared: Bool[Tensor, " n"]) -> TargetSide:
        """Return what R² needs of the target, computed once for each set of compared inner tokens.

        Tokens with massive activations (very long states) of the source or the target are not
        compared. For most sources these are the same tokens, so that the result is cached.
        """
        key = is_compared.numpy().tobytes()
        if key not in self._target_sides:
            self._target_sides[key] = self._compute_target_side(is_compared)
        return self._target_sides[key]

    def _compute_target_side(self, is_compared: Bool[Tensor, " n"]) -> TargetSide:
        """Compute what R² needs of the target: predictors of its states, and a control.

        For residual states, what the token, its position and linear mixing of the earlier tokens
        predict is subtracted. The control is the R² with networks of local mixing, which have the
        target's embedding and only mix it over earlier tokens.
        """
        rows = self.materials.evaluation_rows.long()
        positions = torch.arange(rows.shape[1]).expand_as(rows)
        documents = numbered_by_part(at_inner_tokens(self.materials.evaluation_documents))
        bags = [self._mixing_states[name] for name in BAGS]  # these are linear in the embeddings
        residual = ResidualStates(
            at_inner_tokens(rows), documents, [at_inner_tokens(positions)], bags, is_compared
        )
        beyond = residual.predictor(self.report_states)
        controls = []
        for states in self._mixing_states.values():
            r2_both_ways = both_ways(residual.predictor(states), beyond)
            controls.append(r2_both_ways[None])  # (1 layer pair, direction, replicate)
        plain = residual.plain_predictor(self.report_states)
        return TargetSide(residual, beyond, plain, greatest_at_each_pair(controls))

    @cached_property
    def target_runs(self) -> list[TargetRun]:
        """The target's own states and losses, for each batch of the evaluation text."""
        target = self.materials.target
        layers = range(self.materials.layer, target.n_layers)
        runs = []
        for rows in row_batches(self.materials.evaluation_rows):
            states = target.residuals(rows, layers)
            losses = next_token_losses(target, [states[-1]], rows)[0]
            runs.append(TargetRun(states, losses))
        return runs

    @cached_property
    def token_features(self) -> Float[Tensor, "n f"]:
        """Features of the inner tokens, such as length and frequency, for MLEM profiles."""
        rows = self.materials.evaluation_rows.long()
        tokenizer = self.materials.target.tokenizer
        text_of_token = {token: tokenizer.decode([token]) for token in rows.unique().tolist()}
        # How often tokens occur is counted in other text; every token of the rows has a count.
        other_tokens = self.materials.other_rows.long().flatten()
        counts = other_tokens.bincount(minlength=max(text_of_token) + 1)
        return token_features(rows, text_of_token, counts)

    @torch.no_grad()
    def stitched_run(self, source: Source, stitch: StateMap) -> StitchedRun:
        """Stitch a source into the target, and measure how the target's outputs and states change.

        The target's later blocks read the mapped states of the source instead of its own. The
        first token of each row keeps the target's own state, as maps are fitted on tokens with
        context.

        Args:
            source: A function from tokens to states, which is compared with the target.
            stitch: Maps the source's states to the target's.
        """
        target = self.materials.target
        # Sums over the predicted tokens of all batches.
        n_layers_from_stitch = target.n_layers - self.materials.layer
        penalty = torch.zeros((), dtype=torch.float64, device=target.device)
        kl = torch.zeros_like(penalty)
        distances = torch.zeros(n_layers_from_stitch, dtype=torch.float64, device=target.device)
        batches = row_batches(self.materials.evaluation_rows)
        for rows, target_run in zip(batches, self.target_runs, strict=True):
            mapped = stitch(source.residuals(rows, [0])[0]).to(target.device, target.dtype)
            entering = torch.cat([target_run.states[0][:, :1], mapped[:, 1:]], 1)
            (states,) = states_onwards(target, [(self.materials.layer, entering)])

            losses = next_token_losses(target, states[-1:], rows)[0]
            penalty += (losses - target_run.losses).double().sum()
            last = states[-1][:, :-1].flatten(0, 1)
            own_last = target_run.states[-1][:, :-1].flatten(0, 1)  # of the target alone
            kl += token_kl(last, target.finish, own_last).double().sum()
            for depth, (state, own_state) in enumerate(
                zip(states, target_run.states, strict=True)
            ):
                distance = (state - own_state).norm(dim=-1) / own_state.norm(dim=-1)  # (b, t)
                distances[depth] += distance[:, :-1].double().sum()

        n_predicted = self.materials.evaluation_rows[:, 1:].numel()
        return StitchedRun(
            penalty=float(penalty) / n_predicted,
            kl=float(kl) / n_predicted,
            distances=[total / n_predicted for total in distances.tolist()],
        )
