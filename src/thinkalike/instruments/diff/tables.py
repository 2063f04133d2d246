"""The tables of a diff, with intervals over documents."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit
from torch import Tensor

from thinkalike.evaluation.columns import interval_columns
from thinkalike.evaluation.document_means import mean_over_documents
from thinkalike.evaluation.exchanges import PartChanges
from thinkalike.instruments.diff.observations import Observations
from thinkalike.measures.bootstrap import bootstrap_interval, sum_by_document
from thinkalike.measures.changes import (
    excess,
    false_discovery_rates,
    kl_of_rounding,
    p_above_null,
)
from thinkalike.measures.estimates import SCORE_ROUNDING, Estimate, interval_around
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, norms_of_change_and_base, parts_of
from thinkalike.models.sites import number_of_heads
from thinkalike.states.contrasts import kind_of_token

FEWEST_OCCURRENCES = 3
"""Tokens that occur less often are not tested."""

LEVEL = 0.05
"""The significance level of all tests."""

MOST_CONTEXTS = 10
"""At most this many places in the text are listed, each in a different document."""

TOKENS_OF_CONTEXT = 12
"""At most this many tokens before a place are shown."""

BOUNDS = {
    "kl": (0.0, math.inf),
    "reverse_kl": (0.0, math.inf),
    "flips": (0.0, 1.0),
    "distance": (0.0, math.inf),
}
"""The least and the greatest value at a token."""


EFFECTS = ("onset", "restoring_effect", "transplanting_effect", "mean_effect")
"""The columns of the table of modules that say what the exchange of a module does."""

NUMBERS_OF_MODULE = ("relative_weight_change", *EFFECTS)


def row_of_unchanged_module(part: Part) -> dict[str, object]:
    """Return the row of a module whose weights are equal in both models: all numbers are 0."""
    numbers = dict.fromkeys(NUMBERS_OF_MODULE, 0.0)
    return {"component": part.component, "layer": part.layer, **numbers}


def table_of_modules(observed: Observations) -> pd.DataFrame:
    """Return one row for each module of the base: how far its weights changed, and the effects.

    The columns are the relative change of its weights, the change of states that begins at it
    (onset), and the shares of the KL that exchanging the module between the models removes and
    brings. They are 0 for equal weights, and NaN for a module that differs and was not exchanged.
    If there is a continued-training control (copies of the base that were trained further),
    `weight_change_beyond_control` is the z-score of how much farther the module's weights moved
    than in these copies, relative to the remaining modules.
    """
    documents = observed.documents(observed.n_first_rows)
    kl = observed.kl_of_first_rows().double()
    parts = parts_of(observed.base)
    rows = []
    for part in parts:
        row = row_of_unchanged_module(part)
        if part in observed.parts:  # the modules that differ
            row |= dict.fromkeys(EFFECTS, math.nan)
            row["relative_weight_change"] = _relative_change(observed, part.paths)
            row |= _onset_and_effects(observed.parts[part], kl, documents)
        rows.append(row)
    table = pd.DataFrame(rows)
    if observed.has_continued_training_control:
        z_scores = observed.move_beyond_control.z_scores
        is_compared = [part in observed.parts_compared_with_control for part in parts]
        table.loc[is_compared, "weight_change_beyond_control"] = z_scores.numpy()
    return table


def _relative_change(observed: Observations, paths: tuple[str, ...]) -> float:
    """Return ‖changed - base‖ / ‖base‖ of the weights of the modules at some paths.

    The norms are over the weights that both models have. It is NaN if none of these differ, as for
    an adapter, whose weights have no counterpart in the base, and also if ‖base‖ is 0.
    """
    norm_of_change, norm_of_base = norms_of_change_and_base(observed.base, observed.changed, paths)
    if not norm_of_change or not norm_of_base:
        return math.nan
    return norm_of_change / norm_of_base


def _onset_and_effects(
    changes: PartChanges, kl: Float[Tensor, " n"], documents: Int[Tensor, " n"]
) -> dict[str, float]:
    """Return the onset of a module or output, and its shares of the KL of the whole change.

    The onset is the mean of ‖y - x‖ / ‖x‖, where a block of the base returns x, and y with the
    changed module in place of its own. `restoring_effect` is the share that disappears when the
    base's module is put into the changed model, and `transplanting_effect` the share that appears
    when the changed module is put into the base. `mean_effect` is their mean (the Shapley value of
    two players: this module, and the rest of the change). The shares, which have intervals over
    documents, are left out where the module was not exchanged, or where predictions differ by
    rounding alone.

    Args:
        changes: What the exchange of the module does at each token: the onset (`entering`), the
            KL that remains without its change (`without`), and the KL of its change alone
            (`alone`). Each may be None.
        kl: The KL of the whole change at each token.
        documents: The document of each token.
    """
    row: dict[str, float] = {}
    if changes.entering is not None:
        row |= _mean_distance("onset", changes.entering, documents)
    if changes.without is None or changes.alone is None or kl.mean() <= kl_of_rounding():
        return row
    without = changes.without.double()
    alone = changes.alone.double()
    kl_of_effects = {
        "restoring_effect": kl - without,
        "transplanting_effect": alone,
        "mean_effect": (kl - without + alone) / 2,
    }
    for name, kl_of_module in kl_of_effects.items():
        row |= interval_columns(name, _share_of_kl(kl_of_module, kl, documents))
    return row


def _share_of_kl(
    kl_of_module: Float[Tensor, " n"], kl: Float[Tensor, " n"], documents: Int[Tensor, " n"]
) -> Estimate:
    """Return a module's share of the KL of the whole change, with its interval over documents.

    The interval is (-∞, ∞) with fewer than `FEWEST_GROUPS` documents, or if fewer than two
    documents have a KL above 0.

    Args:
        kl_of_module: The KL that the module accounts for, at each token.
        kl: The KL of the whole change at each token, which is not 0 everywhere.
        documents: The document of each token, numbered from 0.
    """
    n_documents = int(documents.max()) + 1
    module_sums, kl_sums = sum_by_document(torch.stack([kl_of_module, kl]), documents, n_documents)
    n_documents_with_kl = int((kl_sums > 0).sum())
    if n_documents < FEWEST_GROUPS or n_documents_with_kl < 2:
        return interval_around(module_sums.sum() / kl_sums.sum(), math.inf)
    return bootstrap_interval(module_sums, kl_sums)


def table_of_layers(observed: Observations) -> pd.DataFrame:
    """Return a row for each layer: how far the states of the two models are apart, ‖y - x‖ / ‖x‖.

    x is the state of the base at a token, and y that of the changed model. The distance is a mean
    over tokens, with an interval over documents. The first row is that of the embedding, layer -1.
    """
    # For each batch of the text, the distance at each layer and token.
    distances_of_batches = [changes_of_batch.distance for changes_of_batch in observed.changes]
    distances = torch.cat(distances_of_batches, 1)  # (layers, n)
    documents = observed.documents()
    rows = []
    for layer, distances_of_layer in enumerate(distances, start=-1):
        rows.append({"layer": layer, **_mean_distance("distance", distances_of_layer, documents)})
    return pd.DataFrame(rows)


def _mean_distance(
    column: str, distances: Float[Tensor, " n"], documents: Int[Tensor, " n"]
) -> dict[str, float]:
    """Return the columns of the mean relative distance ‖y - x‖ / ‖x‖ and of its interval.

    Tokens whose state x is 0, as the embedding of a padding token may be, are left out, since no
    distance is relative to 0. The mean is NaN if x is 0 at all tokens.

    Args:
        column: The name of the column.
        distances: The distance at each token; NaN where x is 0.
        documents: The document of each token.
    """
    has_distance = ~distances.isnan()
    if not has_distance.any():
        return dict.fromkeys((column, f"{column}_low", f"{column}_high"), math.nan)
    documents_with_distance = documents[has_distance].unique(return_inverse=True)[1]
    mean = mean_over_documents(
        distances[has_distance], documents_with_distance, bounds=BOUNDS["distance"]
    )
    return interval_columns(column, mean)


def table_of_outputs(observed: Observations) -> pd.DataFrame:
    """Return one row for each output that was exchanged, with its shares of KL, greatest first.

    Outputs are those of attention, of MLPs and of single attention heads. The column `head` is NaN
    unless the output is that of a single head, and so is `heads`, the number of heads of the same
    attention, whether exchanged or not. The table is empty where no output was exchanged.
    """
    documents = observed.documents(observed.n_first_rows)
    kl = observed.kl_of_first_rows().double()
    rows = []
    for hook_point, changes in observed.outputs.items():
        head = math.nan
        heads = math.nan
        if hook_point.head is not None:
            head = hook_point.head
            heads = number_of_heads(observed.base) or math.nan
        shares = _onset_and_effects(changes, kl, documents)
        # The integer value of a hook point is its layer.
        place = {"output": hook_point.site, "layer": int(hook_point), "head": head, "heads": heads}
        rows.append({**place, **shares})
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows)
    return table.sort_values("mean_effect", ascending=False, kind="stable", ignore_index=True)


def table_of_nulls(observed: Observations) -> pd.DataFrame:
    """Return a row for each run of the null distribution, with its mean KL in nats per token."""
    null = observed.null
    mean_kl = [float(kl.mean()) for kl in null.kl]
    return pd.DataFrame({"number": range(len(mean_kl)), "kind": null.kind, "kl": mean_kl})


def table_of_tokens(observed: Observations) -> pd.DataFrame:
    """Return a row for each frequent token: how much the prediction after it changed.

    `p_random` tests whether the mean KL after the token is above that of the null. `factor` is the
    ratio of both, divided by the same ratio of the remaining tokens, and `p` tests whether it is
    above 1. `q_random` and `q` are the false discovery rates of these tests. The rows of the
    lowest `q` come first. Without a null, or where no token occurs `FEWEST_OCCURRENCES` times, the
    table is empty.
    """
    tokens = observed.rows.tokens[: observed.n_first_rows, :-1].flatten().long()
    token_ids, groups, counts = tokens.unique(return_inverse=True, return_counts=True)
    is_frequent = counts >= FEWEST_OCCURRENCES
    if not observed.null.kl or not is_frequent.any():
        return pd.DataFrame()

    kl = means_of_groups(observed.kl()[None, : len(tokens)], groups)[0, is_frequent]
    null_of_runs = observed.null.kl_without_random_signs()
    null = means_of_groups(null_of_runs, groups)[:, is_frequent]  # (runs, tokens)
    log_kl = kl.clamp(min=SCORE_ROUNDING).log()
    log_null = null.clamp(min=SCORE_ROUNDING).log()
    p_random = p_above_null(log_kl, log_null)
    log_factor, _, two_sided_p = excess(log_kl, log_null)
    # One-sided: only tokens after which predictions change more count.
    p = torch.where(log_factor > 0, two_sided_p / 2, 1 - two_sided_p / 2)
    tokens_as_text = []
    for token in token_ids[is_frequent].tolist():
        tokens_as_text.append(written_token(observed.base, token))
    table = pd.DataFrame(
        {
            "token": tokens_as_text,
            "count": counts[is_frequent],
            "kl": kl.cpu().numpy(),
            "null_mean": null.mean(0).cpu().numpy(),
            "p_random": p_random.cpu().numpy(),
            "q_random": false_discovery_rates(p_random).cpu().numpy(),
            "factor": log_factor.exp().cpu().numpy(),
            "p": p.cpu().numpy(),
            "q": false_discovery_rates(p).cpu().numpy(),
        }
    )
    return table.sort_values(["q", "p"], kind="stable", ignore_index=True)


def table_of_classes(observed: Observations) -> pd.DataFrame:
    """Return a row for each kind of token, such as numbers: the mean KL after tokens of this kind.

    It is KL(base ‖ changed) of the predictions of the next token. The kind with the greatest KL
    comes first. Intervals are over documents and hold for all kinds at once (Bonferroni). Kinds
    that occur in fewer than `FEWEST_GROUPS` documents are left out, and the table is empty if all
    are.
    """
    documents = observed.documents()
    kl = observed.kl()
    mask_of_kind = {}
    for kind, is_of_kind in _tokens_by_kind(observed).items():
        if len(documents[is_of_kind].unique()) >= FEWEST_GROUPS:
            mask_of_kind[kind] = is_of_kind
    rows = []
    for kind, is_of_kind in mask_of_kind.items():
        # Numbered anew from 0, as some documents have no token of this kind.
        _, documents_of_kind = documents[is_of_kind].unique(return_inverse=True)
        confidence = 1 - LEVEL / len(mask_of_kind)
        mean = mean_over_documents(
            kl[is_of_kind], documents_of_kind, confidence, bounds=BOUNDS["kl"]
        )
        tokens = int(is_of_kind.sum())
        rows.append({"class": kind, "tokens": tokens, **interval_columns("kl", mean)})
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows)
    return table.sort_values("kl", ascending=False, kind="stable", ignore_index=True)


def _tokens_by_kind(observed: Observations) -> dict[str, Bool[Tensor, " n"]]:
    """Return a mask of the text's tokens for each kind of token, in alphabetical order.

    Kinds are, for example, "number" and "punctuation". The last token of each row is left out, as
    the row has no token after it to predict.
    """
    tokens = observed.rows.tokens[:, :-1].flatten().long()
    token_ids, id_index_of_token = tokens.unique(return_inverse=True)
    kind_of_id = [kind_of_token(observed.base.tokenizer, token) for token in token_ids.tolist()]
    kind_of_each_token = np.array(kind_of_id)[id_index_of_token.numpy()]
    mask_by_kind = {}
    for kind in sorted(set(kind_of_id)):
        mask_by_kind[kind] = torch.from_numpy(kind_of_each_token == kind)
    return mask_by_kind


def table_of_words(observed: Observations) -> pd.DataFrame:
    """Return a row for each word with a contrast: its value in the base, and how far it changed.

    A contrast is how much a feature of the word, such as number, moves the log-odds of two
    continuations, in nats; it is a mean over pairs of texts with the word. If there is a null
    (copies of the base that were changed at random, or trained further), the change is tested
    against the changes in these copies and of the remaining words, and the lowest p comes first.
    Else the words are in ascending order of the change. The table is empty if there are no pairs
    of texts.
    """
    contrasts = observed.contrasts
    if contrasts is None:
        return pd.DataFrame()
    # Each word once, in the order of its first pair, in which `groups` numbers the words.
    words = list(dict.fromkeys(prompt.word for prompt in contrasts.texts))
    groups = contrasts.groups  # the index of the word of each pair
    counts = torch.bincount(groups)
    before = observed.contrast_by_pair(observed.base)
    change = observed.contrast_by_pair(observed.changed) - before
    mean_before, mean_change = means_of_groups(torch.stack([before, change]), groups)
    half_width = _half_width(change, mean_change, groups, counts)
    columns = {
        "before": mean_before,
        "change": mean_change,
        "change_low": mean_change - half_width,
        "change_high": mean_change + half_width,
    }
    sorted_by = "change"
    if observed.null.effects:  # the contrasts in the copies
        changes_of_copies = observed.null.contrasts_without_random_signs() - before
        null = means_of_groups(changes_of_copies, groups)
        beyond, t, p = excess(mean_change, null)
        columns |= {"change_beyond_null": beyond, "t": t, "p": p, "q": false_discovery_rates(p)}
        sorted_by = "p"
    arrays = {name: values.cpu().numpy() for name, values in columns.items()}
    table = pd.DataFrame({"word": words, "pairs": counts, **arrays})
    return table.sort_values(sorted_by, kind="stable", ignore_index=True)


def _half_width(
    change: Float[Tensor, " p"],
    mean_change: Float[Tensor, " words"],
    groups: Int[Tensor, " p"],
    counts: Int[Tensor, " words"],
) -> Float[Tensor, " words"]:
    """Return half the width of the interval of each word's mean change.

    The intervals are Student's t intervals over pairs of texts, and hold for all words at once
    (Bonferroni). The interval of a word with a single pair is unbounded.

    Args:
        change: The change of each pair.
        mean_change: The mean change of each word.
        groups: The word of each pair.
        counts: How many pairs each word has.
    """
    squares = (change - mean_change[groups]).square()
    # Σ (x - mean)² / (n (n - 1)), where the mean of squares has the factor 1/n.
    variance_of_mean = means_of_groups(squares[None], groups)[0] / (counts - 1)
    # A word with a single pair gets 1 degree of freedom, so that t is defined; t is not used.
    degrees_of_freedom = counts.clamp(min=2).numpy() - 1
    # The quantile of a two-sided interval, corrected for the number of words.
    t = torch.from_numpy(stdtrit(degrees_of_freedom, 1 - LEVEL / 2 / len(counts)))
    return torch.where(counts > 1, t * variance_of_mean.sqrt(), math.inf)


def table_of_contexts(observed: Observations) -> pd.DataFrame:
    """Return the places in the text where the prediction changed most, at most one per document.

    There are at most `MOST_CONTEXTS` rows, with the largest KL first. Places without any change
    are left out. `before` and `after` are the most likely next tokens in the base and in the
    changed model, and `next` is the token that follows in the text.
    """
    base = observed.base
    token_rows = observed.rows.tokens
    kl = observed.kl()
    documents = observed.documents()
    positions_per_row = observed.rows.context - 1  # nothing follows the last token of a row
    # The most likely next token in the base and in the changed model, (2, n).
    most_likely = torch.cat([change.tops for change in observed.changes], 1)
    row_of_document: dict[int, dict[str, object]] = {}
    for index in kl.argsort(descending=True).tolist():
        if len(row_of_document) == MOST_CONTEXTS or kl[index] == 0:
            break
        document = int(documents[index])
        if document in row_of_document:
            continue
        row, position = divmod(index, positions_per_row)
        first = max(position + 1 - TOKENS_OF_CONTEXT, 0)
        context = token_rows[row, first : position + 1].tolist()
        row_of_document[document] = {
            "kl": float(kl[index]),
            "position": position,
            "context": repr(base.tokenizer.decode(context)),
            "before": written_token(base, int(most_likely[0, index])),
            "after": written_token(base, int(most_likely[1, index])),
            "next": written_token(base, int(token_rows[row, position + 1])),
        }
    return pd.DataFrame(list(row_of_document.values()))


def written_token(model: FrozenModel, token: int) -> str:
    """Return the text of a token, in quotes."""
    return repr(model.tokenizer.decode([token]))


def means_of_groups(
    values: Float[Tensor, "r n"], groups: Int[Tensor, " n"]
) -> Float[Tensor, "r g"]:
    """Return the mean over the columns of each group, in each of r rows, in float64.

    Args:
        values: The values of n columns.
        groups: The group of each column, numbered from 0; every number up to the largest occurs.
    """
    group_count = int(groups.max()) + 1
    # Groups take the place of documents.
    sum_of_group = sum_by_document(values, groups, group_count)
    return sum_of_group / torch.bincount(groups)
