"""What the target model itself gives, computed once for all sources of a court.

A source is a function from tokens to states whose similarity to the target is known.
"""

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
from thinkalike.contrib.court.token_profile import features_of_inner_tokens
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
        states: Its states at the layer of a stitch and after each later block, (b, t, d) each.
        losses: The losses of the s = t - 1 next tokens, in nats.
    """

    states: list[Float[Tensor, "b t d"]]
    losses: Float[Tensor, "b s"]


class StitchedRun(NamedTuple):
    """How the target changes when it resumes from mapped states: means over evaluation tokens.

    Attributes:
        penalty: The loss minus the target's own, in nats.
        kl: The KL divergence of the target's own output from the stitched one's, in nats.
        distances: |h - t| / |t| at the layer of the stitch and after each later block, where h is
            the stitched model's state and t the target's own.
    """

    penalty: float
    kl: float
    distances: list[float]


class TargetPredictors(NamedTuple):
    """What R² between a source and the target needs of the target, at the compared tokens.

    A `Predictor` holds the states of one model and predicts those of a second one linearly.

    Attributes:
        residual_states: Subtracts from any states what token, position and linear mixing of the
            earlier tokens predict.
        residual: The predictor of the target's residual states.
        plain: The predictor of the target's states as they are, on the same rows.
        mixing_r2: Residual R² of the target and the network of local mixing that shares most with
            it, with the axes (layer pair, direction, replicate).
    """

    residual_states: ResidualStates
    residual: Predictor
    plain: Predictor
    mixing_r2: Float[Tensor, "1 2 r"]


def row_batches(rows: Int[Tensor, "rows t"]) -> Sequence[Int[Tensor, "b t"]]:
    """Split rows of tokens into batches of up to `BATCH_TOKENS` tokens, but at least one row."""
    rows_per_batch = max(BATCH_TOKENS // rows.shape[1], 1)
    return rows.long().split(rows_per_batch)


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
        states_of: Computes, for a batch of rows, one tensor of states (b, t, d) or more, such as
            those of several networks.
        rows: All rows of tokens.
    """
    states_by_batch = []
    for batch in row_batches(rows):
        states_by_batch.append([at_inner_tokens(states).cpu() for states in states_of(batch)])
    batches_by_network = zip(*states_by_batch, strict=True)
    return [torch.cat(batches) for batches in batches_by_network]


@dataclass(frozen=True, eq=False)
class TargetResults:
    """What the target model itself gives, computed once for all sources.

    Inner tokens are all but the first and the last of each row.

    Attributes:
        materials: The target model with its layer, and the text.
    """

    materials: Materials
    _predictors_by_tokens: dict[bytes, TargetPredictors] = field(default_factory=dict)

    @cached_property
    def evaluation_states(self) -> Float[Tensor, "n d"]:
        """The target's states at the inner tokens of the evaluation text."""
        return self._states_of(self.materials.evaluation_rows)

    @cached_property
    def fit_states(self) -> Float[Tensor, "m d"]:
        """The target's states at the inner tokens of the text that maps are fitted on."""
        return self._states_of(self.materials.fit_rows)

    def _states_of(self, rows: Int[Tensor, "rows t"]) -> Float[Tensor, "n d"]:
        """Return the target's states at the inner tokens of rows."""
        (states,) = inner_states(lambda batch: [self.materials.target_states(batch)], rows)
        return states

    @cached_property
    def _mixing_states(self) -> dict[str, Float[Tensor, "n d"]]:
        """The states of networks that only mix the embeddings of the tokens so far, by name.

        They are the states of the evaluation text at its inner tokens: all but the first and the
        last of each row. `predictors` says what the target shares with these networks.
        """
        mixing = TokenMixing(self.materials.target)  # each of its layers is one such network
        states = inner_states(
            lambda rows: mixing.residuals(rows, MIXING), self.materials.evaluation_rows
        )
        return dict(zip(MIXING, states, strict=True))

    @torch.no_grad()
    def predictors(self, is_compared: Bool[Tensor, " n"]) -> TargetPredictors:
        """Return what R² between a source and the target needs of the target.

        Tokens with massive activations (very long states) in the source or in the target are not
        compared. The compared tokens are the same for most sources, so results are cached by them.

        Args:
            is_compared: Which of the n inner tokens are compared: those that are neither the first
                nor the last of their row.
        """
        key = is_compared.numpy().tobytes()
        if key not in self._predictors_by_tokens:
            self._predictors_by_tokens[key] = self._compute_predictors(is_compared)
        return self._predictors_by_tokens[key]

    def _compute_predictors(self, is_compared: Bool[Tensor, " n"]) -> TargetPredictors:
        """Prepare linear predictors from and to the target's states, and measure a control.

        Residual states are states without what the token, its position and linear mixing of the
        earlier tokens predict. The control is the greatest residual R² (R² of residual states)
        between the target and one of several networks that have the target's embedding, and only
        mix it over earlier tokens.

        Args:
            is_compared: Which of the n inner tokens are compared: those that are neither the first
                nor the last of their row.
        """
        rows = self.materials.evaluation_rows.long()
        positions = torch.arange(rows.shape[1]).expand_as(rows)
        # The jackknife leaves out parts of the documents; these numbers also say each one's part.
        documents = numbered_by_part(at_inner_tokens(self.materials.evaluation_documents))
        # A bag is a weighted mean of embeddings of the tokens read so far, and so linear in them.
        bags = [self._mixing_states[name] for name in BAGS]
        residual_states = ResidualStates(
            at_inner_tokens(rows), documents, [at_inner_tokens(positions)], bags, is_compared
        )
        residual = residual_states.predictor(self.evaluation_states)
        plain = residual_states.plain_predictor(self.evaluation_states)  # of states as they are

        r2_of_networks = []
        for states in self._mixing_states.values():
            r2_both_ways = both_ways(residual_states.predictor(states), residual)
            r2_of_networks.append(r2_both_ways[None])  # (1 layer pair, direction, replicate)
        mixing_r2 = greatest_at_each_pair(r2_of_networks)
        return TargetPredictors(residual_states, residual, plain, mixing_r2)

    @cached_property
    def target_runs(self) -> list[TargetRun]:
        """The target's own states and losses, for each batch of the evaluation text.

        States are those of the layer that sources are compared with, and of all later layers.
        These serve for a comparison with a stitched model, in which the states of a source,
        mapped to this layer, replace the target's own, and its later layers run on from them.
        """
        target = self.materials.target
        layers = range(self.materials.layer, target.n_layers)
        runs = []
        for rows in row_batches(self.materials.evaluation_rows):
            states = target.residuals(rows, layers)
            (losses,) = next_token_losses(target, [states[-1]], rows)
            runs.append(TargetRun(states, losses))
        return runs

    @cached_property
    def token_features(self) -> Float[Tensor, "n f"]:
        """Features of the inner tokens (all but the first and the last of each row).

        They are length, frequency and the like. An MLEM (metric-learning encoding model), which
        predicts distances of states from features, measures how important each is.
        """
        rows = self.materials.evaluation_rows.long()
        tokenizer = self.materials.target.tokenizer
        text_of_token = {token: tokenizer.decode([token]) for token in rows.unique().tolist()}
        # Frequencies are counted in other documents. With this length, tokens of the evaluation
        # text that do not occur there have a count of 0.
        other_tokens = self.materials.other_rows.long().flatten()
        counts = other_tokens.bincount(minlength=max(text_of_token) + 1)
        return features_of_inner_tokens(rows, text_of_token, counts)

    @torch.no_grad()
    def stitched_run(self, source: Source, stitch: StateMap) -> StitchedRun:
        """Stitch a source into the target, and measure how the target's outputs and states change.

        The target's later blocks read the mapped states of the source instead of its own. All
        results are means over the tokens that have a next token: the penalty (by how much the loss
        rises) and the KL divergence, both in nats, and for each layer from the stitch on the
        distance between the stitched and the target's own state, as a share of the latter's norm.

        Args:
            source: A function from tokens to states, which is compared with the target.
            stitch: Maps the source's states to the target's.
        """
        target = self.materials.target
        # The following three are sums over the tokens of all batches.
        n_layers_from_stitch = target.n_layers - self.materials.layer
        penalty = torch.zeros((), dtype=torch.float64, device=target.device)
        kl = torch.zeros_like(penalty)
        distances = torch.zeros(n_layers_from_stitch, dtype=torch.float64, device=target.device)
        batches = row_batches(self.materials.evaluation_rows)
        for rows, target_run in zip(batches, self.target_runs, strict=True):
            states = self._states_behind_stitch(source, stitch, rows, target_run)
            (losses,) = next_token_losses(target, states[-1:], rows)
            penalty += (losses - target_run.losses).double().sum()
            last = states[-1][:, :-1].flatten(0, 1)  # without the last token of each row
            own_last = target_run.states[-1][:, :-1].flatten(0, 1)  # of the target alone
            # KL(target alone || stitched) of the predictions of the next token.
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

    def _states_behind_stitch(
        self,
        source: Source,
        stitch: StateMap,
        rows: Int[Tensor, "b t"],
        target_run: TargetRun,
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the stitched model's states at the stitch and after each later block.

        The stitched model reads the source's states, mapped to the target, in place of the
        target's own, and runs the target's later blocks. The first token of each row keeps the
        target's own state, since stitches are fitted only on tokens that have context.

        Args:
            source: What is compared with the target, with one layer of states of any tokens.
            stitch: Maps the source's states to the target's.
            rows: A batch of tokens.
            target_run: What the target itself computes for these tokens: its states at the stitch,
                `states[0]`, and after each later block.
        """
        target = self.materials.target
        (source_states,) = source.residuals(rows, layers=[0])  # the only layer of a source
        mapped = stitch(source_states).to(target.device, target.dtype)
        own_first = target_run.states[0][:, :1]
        entering = torch.cat([own_first, mapped[:, 1:]], 1)
        (states,) = states_onwards(target, [(self.materials.layer, entering)])
        return states
