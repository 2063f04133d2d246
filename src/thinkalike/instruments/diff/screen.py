"""What a diff says on one screen: six answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import pandas as pd

from thinkalike.advice import named_setting
from thinkalike.evaluation.exchanges import screening_tokens
from thinkalike.instruments.diff.null_runs import FORKS
from thinkalike.instruments.diff.null_screen import sentence_of_null_comparison
from thinkalike.instruments.diff.ranges import MOST_RANGES, module_names, ranges_in_words
from thinkalike.instruments.diff.taught_screen import is_readable, lines_of_what_was_taught
from thinkalike.instruments.diff.unread_tokens import POSITIONS
from thinkalike.instruments.diff.weights_screen import weights_in_words
from thinkalike.instruments.random_rows import TOKENS_PER_ROW
from thinkalike.instruments.text_name import name_of_text
from thinkalike.measures.changes import kl_of_rounding
from thinkalike.screen import number_of_documents, number_text, span
from thinkalike.store import Result

SHARE_NAMED = 0.9
"""The modules at which states begin to differ are those that hold this share of all onsets."""

MOST_EFFECTS_NAMED = 3
"""At most so many modules, outputs or tokens with the largest effects are named."""

LEAST_EFFECT = 0.005
"""A smaller share of KL rounds to 0 %."""

UNRELATED_CHANGE = 1.2
"""A change of the weights relative to their norm from which they are as good as unrelated: the
difference of two unrelated matrices of one norm is √2 of it."""

CONCENTRATED = 0.5
"""A module that restores this share of KL alone holds most of the effect."""

MOST_NAMED = 6
"""At most so many settings, tokens or words are named."""

LEAST_Z_NAMED = 3
"""From this z-score on, a module stands out as having moved farther than in the
continued-training control. It is large, as recipes of training differ, too."""

FALSE_DISCOVERIES = 0.05
"""The rate of false discoveries among what is told apart."""

VERDICTS = {0: "equivalent", 1: "not equivalent", 3: "undecided"}
"""The verdicts by exit status."""

Numbers: TypeAlias = Mapping[str, float]
"""The headline numbers of a result."""


def screen_lines(result: Result) -> Iterator[str]:
    """Yield the lines that are printed for a diff: a summary, and then questions with answers.

    What the changed model was taught stands above the summary if it can be read off, or if nothing
    else was asked. For equal models no text was read, and the number of tokens is 0. Then there
    are only the summary and the last line.
    """
    numbers = result.scalars
    tables = result.tables
    settings = result.config["measure"]
    is_taught_first = asks_only_what_was_taught(result) or (
        "lead_p" in numbers and is_readable(numbers)
    )
    if is_taught_first:
        yield from lines_of_what_was_taught(tables, numbers)
    yield summary_sentence(result)
    if numbers["tokens"]:
        yield f"How much? {_change_in_words(numbers)}"
    if len(tables.get("settings", ())):
        yield f"Which settings? {_settings_in_words(tables['settings'])}"
    if "weights" in tables:
        yield f"Which weights? {weights_in_words(tables['weights'], result.details)}"
    if numbers["tokens"]:
        yield from _lines_of_text(result)
        if not is_taught_first:
            yield from lines_of_what_was_taught(tables, numbers)
    yield f"Equivalent? {verdict_in_words(numbers, settings['margin'])}"


def asks_only_what_was_taught(result: Result) -> bool:
    """Return whether no module and no output was exchanged, as `taught=only` asks for."""
    measure = result.config.get("measure") or {}
    return bool(measure.get("taught") == "only")


def _lines_of_text(result: Result) -> Iterator[str]:
    """Yield the lines about the predictions of both models on text.

    A line is left out if its numbers were not computed. All but the first are left out if the job
    asked only what the changed model was taught: then no module or output was exchanged. The null,
    that effects are compared with, is random changes of the same size, or copies of the base that
    were trained further.
    """
    numbers = result.scalars
    tables = result.tables
    null_continues_training = "nulls" in tables and bool((tables["nulls"]["kind"] == FORKS).any())
    if "null_p" in numbers:
        comparison = sentence_of_null_comparison(numbers, null_continues_training)
        yield f"More than by chance? {comparison}"
    if asks_only_what_was_taught(result):
        return
    if numbers["modules"]:
        p_of_farthest = numbers.get("p_of_farthest_module")
        effects = _onsets_and_effects_in_words(result.details, p_of_farthest)
        yield f"Where? {effects} {choice_of_modules_in_words(result)}".rstrip()
    if "outputs" in tables and tables["outputs"]["restoring_effect"].notna().any():
        follows_modules = bool(numbers["modules"])
        most_outputs = result.config["measure"].get("outputs", 0)
        tokens = _tokens_of_choice(result)
        outputs = _outputs_in_words(tables["outputs"], follows_modules, most_outputs, tokens)
        yield f"Through which outputs? {outputs}"
    if "contexts" in tables:
        sentences = _sentences_about_tokens(
            tables.get("tokens"), tables["contexts"], null_continues_training
        )
        yield f"On what? {sentences}"
    if "words" in tables:
        yield f"On which words? {_contrasts_in_words(tables['words'], numbers)}"
    if numbers["modules"]:
        directions = directions_in_words(tables.get("directions"), result.details, numbers)
        yield f"In which directions? {directions}"


def _tokens_of_choice(result: Result) -> int:
    """Return the number of tokens on which a diff chose the modules and outputs to exchange."""
    text = result.config.get("data") or {}
    context = text.get("context") or TOKENS_PER_ROW
    return min(screening_tokens(context), int(result.scalars["tokens"]))


def choice_of_modules_in_words(result: Result) -> str:
    """Return a sentence that says how modules were chosen; "" if all that changed were exchanged.

    It is "" as well if none was exchanged, as where predictions do not differ.
    """
    changed = result.details[result.details["relative_weight_change"] != 0]
    exchanged = changed["restoring_effect"].notna().sum()
    if exchanged in (0, len(changed)):
        return ""
    return (
        f"Only {exchanged} of {len(changed)} changed modules were exchanged: those with the "
        f"largest transplanting effect on the first {_tokens_of_choice(result):,} tokens; a "
        "module that was left out may have a larger effect on more text, or when it is put back."
    )


def summary_sentence(result: Result) -> str:
    """Return in one sentence what changed, where its effect lies, and which text was read.

    For equal models, the sentence says that they are equal.
    """
    numbers = result.scalars
    base, changed = (model["name"] for model in result.provenance["models"][:2])
    if not numbers["tokens"]:  # no text is read for equal models
        return f"{changed} equals {base}: all weights, settings and tokenizers are the same."

    text = f"text: {name_of_text(result)}, {numbers['tokens']:,.0f} tokens"
    modules_in_words = _count_of_modules(result.details, int(numbers["modules"]))
    what_changed = f"{base} → {changed}: {modules_in_words}"
    if not numbers["kl"]:
        return f"{what_changed}, and no prediction differs; {text}."

    kl_in_words = f"KL is {number_text(numbers['kl'], '.3g')} nats per token"
    if numbers["kl"] <= kl_of_rounding():
        return (
            f"{what_changed}, and predictions differ by no more than rounding ({kl_in_words}); "
            f"{text}."
        )
    clauses = [what_changed, kl_in_words]
    # With taught=only no module is exchanged, so that the effects of modules are not known.
    if numbers["modules"] and not asks_only_what_was_taught(result):
        clauses.append(_concentration_in_words(result.details))
    clauses += _most_affected_tokens(result.tables)
    return f"{'; '.join([*clauses, text])}."


def _count_of_modules(table: pd.DataFrame, modules: int) -> str:
    """Return in words how many modules changed, and their median relative change.

    They are as far as weights that were trained separately if the median over all modules is: a
    single entry may be many times as large as the norm of the one module that has it.

    Args:
        table: A row for each module.
        modules: How many of them changed; if none did, only settings differ.
    """
    if not modules:
        return "only settings changed"
    count = f"{modules} of {len(table)} modules changed"
    if modules == len(table):
        count = f"all {modules} modules changed"
    changes = table["relative_weight_change"]
    median = changes[changes > 0].median()
    if math.isnan(median):  # the weights of an adapter have no counterpart in the base
        return count
    digits = ".0f" if median > 0.1 else ".2g"  # whole percents from 10 % on
    in_words = f"{count}, in the median by {number_text(100 * median, digits)} % of their norm"
    if changes.median() >= UNRELATED_CHANGE:
        in_words += ", as far as weights that were trained separately"
    return in_words


def _concentration_in_words(table: pd.DataFrame) -> str:
    """Return in words whether the effect of the change is concentrated in one module or spread.

    It is concentrated if putting back this module of the base undoes a share of `CONCENTRATED`.

    Args:
        table: A row for each module. `restoring_effect` is the share of the KL that disappears
            when the base's module is put back; it is NaN if the module was not exchanged.
    """
    changed = table[table["relative_weight_change"] != 0]
    exchanged = changed.dropna(subset="restoring_effect")
    if exchanged.empty:
        return "no module was exchanged"
    one_module = "any one module"
    if len(exchanged) < len(changed):
        one_module = f"any one of the {len(exchanged)} exchanged modules"
    module_of_largest = exchanged.iloc[int(exchanged["restoring_effect"].argmax())]
    largest_effect = module_of_largest["restoring_effect"]
    if largest_effect < LEAST_EFFECT:
        return (
            f"no single module explains it: putting {one_module} of the base back into the "
            "changed model removes none of the KL"
        )
    module = module_names([module_of_largest])
    share = number_text(largest_effect, ".0%")
    if largest_effect >= CONCENTRATED:
        return (
            f"the effect is concentrated: putting {module} of the base back removes {share} of "
            "the KL"
        )
    return (
        f"the effect is spread over modules: putting {one_module} of the base back removes at "
        f"most {share} of the KL ({module})"
    )


def _most_affected_tokens(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return a list with one clause, which names the tokens after which KL stands out most.

    The list is empty if tokens were not tested, or if none stands out (`q` is the false discovery
    rate of a token, and `factor` how many times larger its KL is than that of other tokens).
    """
    if "tokens" not in tables:
        return []
    standing_out = tables["tokens"].query("q <= @FALSE_DISCOVERIES")
    if standing_out.empty:
        return []
    largest = standing_out.nlargest(MOST_EFFECTS_NAMED, "factor")
    return [f"largest after {', '.join(map(str, largest['token']))}"]


def _value_with_interval(numbers: Numbers | pd.Series, name: str, spec: str) -> str:
    """Return a number with its interval in words, or alone if it has none.

    Args:
        numbers: Numbers by name. The ends of the interval are `{name}_low` and `{name}_high`.
        name: The name of the number.
        spec: How numbers are formatted, such as ".2f".
    """
    low = numbers.get(f"{name}_low", math.nan)
    high = numbers.get(f"{name}_high", math.nan)
    return span(numbers[name], low, high, spec)


def _change_in_words(numbers: Numbers) -> str:
    """Return in words how much predictions changed: KL, most likely tokens, and loss."""
    documents = number_of_documents(numbers)
    if not numbers["kl"]:
        return f"No prediction differs over {documents}."
    return (
        f"KL(base ‖ changed) is {_value_with_interval(numbers, 'kl', '.4g')} nats per token "
        f"(KL(changed ‖ base) {numbers['reverse_kl']:.4g}); the most likely next token differs at "
        f"{_value_with_interval(numbers, 'flips', '.1%')} of the tokens; the loss goes from "
        f"{number_text(numbers['loss_base'], '.3f')} to "
        f"{number_text(numbers['loss_changed'], '.3f')} nats, by "
        f"{_value_with_interval(numbers, 'loss_change', '+.4f')}; {documents}."
    )


def _settings_in_words(table: pd.DataFrame) -> str:
    """Return in words which settings differ, at most `MOST_NAMED` of them by name.

    Args:
        table: A row for each setting that differs, with its value in both models.
    """
    named = table.head(MOST_NAMED)
    settings = [f"{row.setting} {row.base} → {row.changed}" for row in named.itertuples()]
    in_words = ", ".join(settings)
    if len(table) > MOST_NAMED:
        in_words += f" and {len(table) - MOST_NAMED} more"
    return f"{in_words}."


def _onsets_and_effects_in_words(table: pd.DataFrame, p_of_farthest: float | None) -> str:
    """Return in words in which modules states begin to differ, and which have the largest effects.

    With the continued-training control (copies of the base that were trained further), a sentence
    follows that says whether the weights of one module moved much farther than in these copies.

    Args:
        table: A row for each module. `mean_effect` is the mean of two shares of the KL: the one
            that disappears when the base's module is put into the changed model, and the one that
            appears when the changed module is put into the base. It is NaN if the module was not
            exchanged, and for all modules if predictions differ by rounding alone.
        p_of_farthest: The p-value of the module whose weights moved farthest, compared with these
            copies; None: there is no such control.
    """
    changed = table[table["relative_weight_change"] != 0]
    sentences = [onsets_in_words(changed)]
    effects = changed["mean_effect"].dropna().sort_values(ascending=False, kind="stable")
    if effects.empty:
        sentences.append("No prediction differs by more than rounding.")
    else:
        named = changed.loc[effects.index[:MOST_EFFECTS_NAMED]]
        names = [module_names([row]) for _, row in named.iterrows()]
        sentences.append(effects_in_words("module", names, named, changed))
    if p_of_farthest is not None:
        sentences.append(_farthest_in_words(changed, p_of_farthest))
    # The first sentence is "" if no onset is known.
    return " ".join(sentence for sentence in sentences if sentence)


def effects_in_words(
    what: str,
    names: Sequence[str],
    rows: pd.DataFrame,
    all_rows: pd.DataFrame,
    is_repeated: bool = False,
    which: str = "",
) -> str:
    """Return in words the effects of exchanging single modules, or outputs, between the models.

    There are three cases:

    - Putting back none of them lowers the KL, and some raise it, as between models that were
      trained separately. Shares of the KL then mean nothing, and the sentence says how many times
      larger it becomes.
    - None of them changes the KL, as if models differ behind the last block alone. The sentence
      says so.
    - Otherwise the sentence has both shares of the KL, of restoring and of transplanting, which
      differ where modules act together.

    Args:
        what: "module", "output" or "head".
        names: The names of those whose effect is stated.
        rows: Their rows, in the same order.
        all_rows: The rows of all that were exchanged.
        is_repeated: Whether a sentence of the same form came before, so that a shorter one is
            enough.
        which: Which ones were exchanged, such as ", of 8 that were exchanged"; "" if it was all.
    """
    effects = all_rows[["restoring_effect", "transplanting_effect"]].dropna()
    if (effects.abs() < LEAST_EFFECT).all(axis=None):
        beginning = f"Putting one {what} of the base back into the changed model, or the reverse,"
        if is_repeated:
            beginning = f"Exchanging one {what}"
        return f"{beginning} does not change the KL."
    kl_left = {}
    for name, effect in zip(names, rows["restoring_effect"], strict=True):
        # The effect is the share of the KL that disappears: one of -2 leaves 3 times the KL.
        times = number_text(1 - effect, ".2g")
        if effect < 0 and times != "1":
            kl_left[name] = 1 - effect
    if kl_left and all_rows["restoring_effect"].max() < LEAST_EFFECT:
        largest_first = sorted(kl_left.items(), key=lambda name_and_kl: -name_and_kl[1])
        rises = []
        for name, times in largest_first:
            rises.append(f"{name} to {number_text(times, '.2g')} times")
        beginning = f"Putting one {what} of the base back into the changed model"
        if is_repeated:
            beginning = f"Putting back one {what}"
        return f"{beginning} does not lower the KL but raises it: {', '.join(rises)} what it is."
    shares = []
    for name, (_, row) in zip(names, rows.iterrows(), strict=True):
        if is_repeated:  # the intervals are in the table: with them the screen would be too long
            restoring = number_text(row["restoring_effect"], ".0%")
            transplanting = number_text(row["transplanting_effect"], ".0%")
            shares.append(f"{name}: {restoring} and {transplanting}")
        else:
            restoring = _share_with_interval(row, "restoring_effect")
            transplanting = _share_with_interval(row, "transplanting_effect")
            shares.append(f"{name}: restoring {restoring}, transplanting {transplanting}")
    if is_repeated:
        return f"The same two shares for one {what}{which}: {', '.join(shares)}."
    return (
        f"Share of the KL that disappears when one {what} of the base is put back (restoring), "
        f"and that appears when one of the changed model is put into the base "
        f"(transplanting){which}: {'; '.join(shares)}."
    )


def _share_with_interval(row: pd.Series, name: str) -> str:
    """Return a share in words with its interval over documents, such as "86 % [81 %, 90 %]".

    The interval is left out if documents are too few for one, and in tables of earlier versions,
    which have none.
    """
    ends = [float(row.get(f"{name}_{end}", math.nan)) for end in ("low", "high")]
    if not all(map(math.isfinite, ends)):
        return number_text(row[name], ".0%")
    return _value_with_interval(row, name, ".0%")


def onsets_in_words(changed: pd.DataFrame) -> str:
    """Return in words in which modules most of the change of states begins; "" if none is known.

    An onset is how far the states after a module differ, relative to their norm, given equal
    input. The fewest modules are named whose onsets are at least `SHARE_NAMED` of the sum of all
    onsets, or only the one with the largest onset if their names have more than `MOST_RANGES`
    ranges.

    Args:
        changed: The rows of the modules whose weights differ.
    """
    onsets = changed["onset"].dropna().sort_values(ascending=False, kind="stable")
    # A module is named if the modules before it in this order do not reach the share yet.
    sum_of_larger_onsets = onsets.cumsum() - onsets
    is_named = sum_of_larger_onsets < SHARE_NAMED * onsets.sum()
    indices = onsets.index[is_named]
    if not len(indices):
        return ""
    names = module_names([changed.loc[index] for index in sorted(indices)])
    n_ranges = 1 + names.count(",") + names.count(" and ")  # as in "MLP 3, 5 to 8 and norms 2"
    what_begins = "States begin to differ"
    if len(indices) < (onsets > 0).sum():
        share = number_text(SHARE_NAMED, ".0%")
        what_begins = f"At least {share} of the differences that modules make to states begin"
    if n_ranges <= MOST_RANGES:
        return f"{what_begins} in these modules, given equal input (numbers of blocks): {names}."
    largest = changed.loc[indices[0]]
    return (
        f"{what_begins} in {len(indices)} modules, given equal input, most of all in "
        f"{module_names([largest])} (by {number_text(largest['onset'], '.2g')} of their norm)."
    )


def _farthest_in_words(changed: pd.DataFrame, p: float) -> str:
    """Return in a sentence which module's weights moved especially far, or that none did.

    `weight_change_beyond_control` is the z-score of how much farther a module moved than in copies
    of the base that were trained further, relative to the remaining modules. The module with the
    largest z-score is named if this is at least `LEAST_Z_NAMED`, and its p-value at most
    `FALSE_DISCOVERIES`. Otherwise the sentence says that no module moved farther.

    Args:
        changed: The rows of the modules whose weights differ.
        p: The p-value of the module with the largest z-score.
    """
    compared = changed[changed["weight_change_beyond_control"].notna()]
    compared = compared.sort_values("weight_change_beyond_control")
    farthest = compared.iloc[-1]
    module = "No module"
    if p <= FALSE_DISCOVERIES and farthest["weight_change_beyond_control"] >= LEAST_Z_NAMED:
        module = module_names([farthest])
    return (
        f"{module} moved farther than in the continued-training control and than the remaining "
        f"modules did (p = {p:.2g}, corrected for {len(compared)} modules)."
    )


def _outputs_in_words(
    table: pd.DataFrame, follows_modules: bool, most_outputs: int, tokens: int
) -> str:
    """Return in words which outputs of attention and MLPs, and which heads, have most effect.

    Args:
        table: A row for each output that was exchanged between the two models, the greatest effect
            first.
        follows_modules: Whether a sentence of the same form about modules comes before this one,
            which is shorter then.
        most_outputs: How many outputs of attention and MLPs were exchanged at most.
        tokens: On how many tokens it was chosen which outputs are exchanged, if not all were.
    """
    is_head = table["output"] == "z"  # TransformerLens's name for the output of one head
    outputs = table[~is_head]
    heads = table[is_head]
    which_outputs = f", of {len(outputs)} that were exchanged"
    sentences = [_effects_of_outputs("output", outputs, which_outputs, follows_modules)]
    chosen = []
    # If there are as many outputs of attention and MLPs as the setting allows, others may have
    # been left out.
    if len(outputs) >= most_outputs:
        chosen.append("outputs")
    if len(heads):
        layers = sorted(outputs.loc[outputs["output"] == "attn_out", "layer"])
        heads_of_attention = heads["heads"].iloc[0] if "heads" in heads else math.nan
        n_heads = heads_of_attention * len(layers)  # NaN in tables of earlier versions
        which_heads = _which_heads(len(heads), n_heads, layers)
        sentences.append(_effects_of_outputs("head", heads, which_heads, is_repeated=True))
        if len(heads) < n_heads:
            chosen.append("heads")
    if chosen:
        sentences.append(
            f"The {' and '.join(chosen)} were chosen by their transplanting effect on the first "
            f"{tokens:,} tokens."
        )
    sentences.append("An output also carries what changed before it.")
    return " ".join(sentences)


def _which_heads(exchanged: int, n_heads: float, layers: Sequence[int]) -> str:
    """Return which heads were exchanged: ", of all 9 of attention 8", or ", of 4 of the 18 ...".

    Args:
        exchanged: How many heads were exchanged.
        n_heads: How many heads the attentions have together; NaN if that is not known.
        layers: The blocks of these attentions.
    """
    attentions = f"attention {', '.join(ranges_in_words(layers))}"
    if exchanged == n_heads > 1:
        return f", of all {exchanged} of {attentions}"
    if math.isnan(n_heads):
        return f", of {exchanged} that were exchanged, of {attentions}"
    return f", of {exchanged} that were exchanged of the {n_heads:.0f} of {attentions}"


def _effects_of_outputs(what: str, rows: pd.DataFrame, which: str, is_repeated: bool) -> str:
    """Return in words the effects of the first outputs of a table, those with the largest effect.

    Args:
        what: "output" or "head".
        rows: A row for each output, or for each head, the greatest effect first.
        which: Which ones were exchanged, as `effects_in_words` takes it.
        is_repeated: Whether a sentence of the same form came before, so that this may be short.
    """
    components = {"attn_out": "attention", "mlp_out": "MLP"}  # also TransformerLens's names
    named = rows.head(MOST_EFFECTS_NAMED)
    names = []
    for _, row in named.iterrows():
        if row["output"] == "z":  # TransformerLens's name for the output of one head
            names.append(f"head {row['layer']}.{row['head']:.0f}")
        else:
            names.append(f"{components[row['output']]} {row['layer']}")
    return effects_in_words(what, names, named, rows, is_repeated, which)


def _sentences_about_tokens(
    tokens: pd.DataFrame | None, contexts: pd.DataFrame, null_continues_training: bool
) -> str:
    """Return sentences about the tokens after which predictions changed, and the largest change.

    Args:
        tokens: A row for each frequent token; None: there are none, or there is no null.
        contexts: The places in the text where predictions changed most, the greatest first.
        null_continues_training: Whether the null is the continued-training control.
    """
    sentences = []
    if tokens is not None:
        sentences.append(_more_than_at_random(tokens, null_continues_training))
        sentences.append(_more_than_elsewhere(tokens))
    most = contexts.iloc[0]
    sentences.append(
        f"Most (KL {most['kl']:.3g} nats) after {most['context']}: the likeliest token "
        f"{most['before']} → {most['after']}."
    )
    return " ".join(sentences)


def _more_than_at_random(tokens: pd.DataFrame, null_continues_training: bool) -> str:
    """Return after how many frequent tokens predictions changed more than in the null.

    Args:
        tokens: A row for each frequent token.
        null_continues_training: Whether the null is the continued-training control, or else
            random changes.
    """
    above = tokens[tokens["q_random"] <= FALSE_DISCOVERIES]
    tested = f"of {len(tokens)} tokens that occur at least {tokens['count'].min()} times"
    by_null = "by matched random changes"
    if null_continues_training:
        by_null = "in the continued-training control"
    if above.empty:
        return f"After none {tested} do predictions change more than {by_null}."
    times = (above["kl"] / above["null_mean"]).median()
    return (
        f"After {len(above)} {tested}, predictions change more than {by_null}; in the median, KL "
        f"there is {number_text(times, '.2g')} times that of this null."
    )


def _more_than_elsewhere(tokens: pd.DataFrame) -> str:
    """Return in words the tokens after which predictions change more than after other tokens.

    Each token has a ratio: the KL of the change after it, divided by that of random changes of the
    same size. A token stands out if its ratio is `factor` times that of the other tokens, at a
    false discovery rate `q` of at most `FALSE_DISCOVERIES`.

    Args:
        tokens: A row for each token, the largest factor first.
    """
    standing_out = tokens[tokens["q"] <= FALSE_DISCOVERIES]
    if standing_out.empty:
        return "No token stands out against the rest."
    named = standing_out.head(MOST_NAMED)
    in_words = ", ".join(
        f"{row.token} ({number_text(row.factor, '.1f')} times)" for row in named.itertuples()
    )
    if len(standing_out) > MOST_NAMED:
        in_words += f" and {len(standing_out) - MOST_NAMED} more"
    return f"KL stands out against the remaining tokens after {in_words}."


def _contrasts_in_words(table: pd.DataFrame, numbers: Numbers) -> str:
    """Return in words which contrasts of words changed more than in the null and than the rest.

    A contrast is how much a feature of a word, such as number, moves the log-odds of two
    continuations. The null consists of random changes of the same size, or of copies of the base
    that were trained further. `t` is how far a word stands out, in standard errors.

    Args:
        table: A row for each word.
        numbers: The headline numbers, with the means over words.
    """
    contrast = (
        f"The contrast of {len(table)} words is "
        f"{number_text(numbers['contrast_base'], '.2f')} nats in the base and changes by "
        f"{number_text(numbers['contrast_change'], '+.3f')} nats on average"
    )
    if "q" not in table:
        return f"{contrast}; it was not compared with a null."
    beyond = table[table["q"] <= FALSE_DISCOVERIES]
    if beyond.empty:
        return f"{contrast}; no word changes more than the null and the remaining words."
    words = []
    for row in beyond.head(MOST_NAMED).itertuples():
        change = number_text(row.change, "+.2f")
        words.append(f"{row.word} by {change} nats (t = {number_text(row.t, '.1f')})")
    if len(beyond) > MOST_NAMED:
        words.append(f"{len(beyond) - MOST_NAMED} more")
    return f"{contrast}; more than the null and the remaining words change {', '.join(words)}."


def directions_in_words(
    directions: pd.DataFrame | None, modules: pd.DataFrame, numbers: Numbers
) -> str:
    """Return in words what the first principal direction of the change of states does.

    Args:
        directions: A row for each direction, the first one first; None: they were not computed,
            and the function returns the reason.
        modules: A row for each module. Its onset is the relative change of states that begins at
            it; if no onset is above 0, no states differ.
        numbers: The headline numbers.
    """
    if directions is None and not modules["onset"].max() > 0:
        return "Not computed: the states inside the blocks do not differ."
    if directions is None:
        return (
            f"Not computed: the {numbers['compared_tokens']:,.0f} tokens that this reads are of 1 "
            "document, and at least 2 are needed."
        )
    first = directions.iloc[0]
    site = f"layer {first['layer']}"
    if first["layer"] < 0:
        site = "the embedding"
    return (
        f"After {site}, one direction holds {number_text(first['share_of_change'], '.0%')} of the "
        f"mean square of the change of the states{_without_massive(first)} (cosine with that of "
        f"either half of the documents at least {first['stability']:.2f}); a step along it makes "
        f"these tokens likelier: {first['raises']}; and these less likely: {first['lowers']}."
    )


def _without_massive(direction: pd.Series) -> str:
    """Return a clause that says how many states with massive activations were left out, or "".

    Results of version 8 and before lack the number, and get "".
    """
    count = int(direction.get("massive_states", 0))
    if not count:
        return ""
    return f", without {count:,.0f} state{'s' * (count != 1)} with massive activations"


def verdict_in_words(numbers: Numbers, margins: Mapping[str, float | None]) -> str:
    """Return in words whether the models are equivalent within each margin that was given.

    A sentence follows about tokens whose embedding differs and which the text lacks, if any.

    Args:
        numbers: The headline numbers.
        margins: The margin of each number; None: it was not tested.
    """
    if "exit_status" not in numbers:  # only results of a job with a margin have it
        verdict = (
            "Not tested, as no margin is given, such as "
            f"{named_setting('measure.margin.kl', 0.01)}."
        )
    elif not numbers["tokens"]:  # no text is read for equal models
        verdict = "Equivalent: the models are equal."
    else:
        tests = []
        for name, margin in margins.items():
            if margin is not None:
                verdict_of_margin = VERDICTS[int(numbers[f"exit_status_{name}"])]
                tests.append(f"{name} {verdict_of_margin} (margin {margin:g})")
        overall = VERDICTS[int(numbers["exit_status"])].capitalize()
        verdict = f"{overall} by two one-sided tests at 2.5 %: {', '.join(tests)}."
    if not numbers.get("tokens_unread"):
        return verdict
    inserted = "them"
    if numbers["tokens_unread"] > POSITIONS:  # there are only so many positions to insert them at
        inserted = "a random sample of them"
    return (
        f"{verdict} The text lacks {numbers['tokens_unread']:,.0f} of the "
        f"{numbers['tokens_changed']:,.0f} tokens whose embedding differs; after {inserted}, "
        f"inserted into the text, KL is {_value_with_interval(numbers, 'unread_kl', '.3g')}."
    )
