"""The first sentence of a screen is the answer, in the numbers of its table and with the names that were given."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from stores import made
from thinkalike.config import MEASURES, instrument
from thinkalike.instruments.diff.screen import (
    _outputs_in_words,
    choice_of_modules_in_words,
    directions_in_words,
    effects_in_words,
    onsets_in_words,
    summary_sentence,
    verdict_in_words,
)
from thinkalike.instruments.mlem.screen import largest_changes
from thinkalike.instruments.ruler.screen import (
    NO_MORE_SIMILAR,
    bit_width_cells,
    sentence_of_pairs_above_control,
    show_bit_widths,
)
from thinkalike.registry import layer_measures
from thinkalike.screen import number_text, span
from thinkalike.screen.text import wrapped

LAYERS = 24


def said(kind: str, result) -> str:
    """The sentences of a screen in one line, without its tables and maps."""
    return " ".join(instrument(MEASURES[kind]).said(result).split())


# ---- numbers


@pytest.mark.parametrize(
    ("value", "spec", "expected"),
    [(-0.0004, ".3f", "0.000"), (-0.0004, "+.3f", "0.000"), (-0.4, ".0%", "-40 %"), (-0.001, ".0%", "0 %"),
     (2, ".2f", "2.00")],
)  # fmt: skip
def test_a_number_that_rounds_to_zero_has_no_sign(value, spec, expected):
    assert number_text(value, spec) == expected
    assert span(value, value, math.nan, spec) == expected
    assert span(value, value, value, spec) == f"{expected} [{expected}, {expected}]"


@pytest.mark.parametrize(
    ("value", "spec", "expected"),
    [(1e300, ".3f", "1e+300"), (-2.5e300, "+,.2f", "-2.5e+300"), (1e300, "+.1%", "+1e+302 %"), (1e15, ",.0f", "1e+15"),
     (np.float32(1e30), ".4f", "1e+30"), (math.inf, ".3f", "inf"), (123_456_789.0, ",.0f", "123,456,789")],
)  # fmt: skip
def test_a_number_of_more_digits_than_floats_have_is_written_with_a_power(value, spec, expected):
    assert number_text(value, spec) == expected


def test_no_line_begins_with_a_percent_sign():
    lines = wrapped("one two 18 % three", len("one two 18"))
    assert lines == ["one two", "18 % three"], "control: the line would be full after 18"


# ---- MLEM


def profile(**importances) -> pd.DataFrame:
    """The importances of features in some layers, with intervals of ± 0.05."""
    tables = []
    for feature, values in importances.items():
        values = np.asarray(values, float)
        tables.append(pd.DataFrame({
            "model": "a-model", "layer": range(len(values)), "feature": feature, "importance": values,
            "low": values - 0.05, "high": values + 0.05,
        }))  # fmt: skip
    return pd.concat(tables, ignore_index=True)


RISING = [0.0] * 22 + [0.43, 0.40]
FALLING = [0.1, 0.3, *np.linspace(0.28, 0.02, LAYERS - 2)]
FLAT = [0.08] * 12 + [0.12] * 12


def explained(profiles: pd.DataFrame):
    scores = pd.DataFrame({"model": "a-model", "layer": range(LAYERS), "score": 0.3, "low": 0.2, "high": 0.4})
    scores.loc[17, "score"] = 0.5
    return made(profiles, {}, {"stimuli": {"count": 24, "source": "words.csv"}}, scores=scores)


def test_what_rises_and_falls_over_depth_is_said_with_its_layers():
    first, second = map(str, largest_changes(profile(animacy=RISING, tense=FALLING, number=FLAT)))
    assert first == "animacy rises from 0.000 [-0.050, 0.050] at layer 0 to 0.430 [0.380, 0.480] at layer 22"
    assert second == "tense falls from 0.300 [0.250, 0.350] at layer 1 to 0.020 [-0.030, 0.070] at layer 23"


def test_a_change_within_the_intervals_is_not_said():
    assert largest_changes(profile(number=FLAT)) == []
    narrow = profile(number=FLAT).assign(low=lambda rows: rows["importance"], high=lambda rows: rows["importance"])
    assert len(largest_changes(narrow)) == 1, "control: it is said where the intervals do not overlap"
    assert largest_changes(narrow.assign(low=math.nan, high=math.nan)) == [], "without intervals nothing is certain"


def test_every_layer_that_is_named_is_shown():
    shown = said("mlem", explained(profile(animacy=RISING, tense=FALLING, number=FLAT)))
    assert shown.startswith(
        "a-model: the features predict the distances of stimuli best in layer 17, with ρ 0.500 [0.200, 0.400]."
    )
    table = shown.partition("held-out")[2]
    for layer in (0, 1, 17, 22, 23):
        assert f"│ {layer} │" in table, layer
    assert "│ 12 │" not in table or "│ 11 │" not in table, "control: not all layers are shown"
    assert re.search(r"\(1\d of 24 layers; result.details has all\)", shown)
    assert "no fit gives the feature any weight" not in shown


def test_an_importance_of_exactly_0_is_explained_and_so_is_the_part_of_speech():
    silent = profile(PoS=RISING, number=FLAT)
    is_flat = silent["feature"] == "number"
    silent.loc[is_flat, ["importance", "low", "high"]] = 0.0
    shown = said("mlem", explained(silent))
    assert "0.000 [0.000, 0.000]: no fit gives the feature any weight." in shown
    assert "PoS: part of speech." in shown


def test_without_an_interval_and_chance_no_feature_is_said_to_matter():
    no_interval = {"low": math.nan, "high": math.nan}
    scores = pd.DataFrame({"model": "a-model", "layer": range(LAYERS), "score": 0.3, **no_interval})
    profiles = profile(animacy=RISING).assign(**no_interval)
    shown = said("mlem", made(profiles, {}, {"stimuli": {"count": 24, "source": "words.csv"}}, scores=scores))
    assert "no feature is shown to matter: permuting animacy lowers ρ most, by 0.430 in layer 22" in shown
    assert "neither an interval nor chance is known" in shown
    assert "95 % intervals" not in shown


# ---- distances


def test_a_distance_names_its_text_and_how_many_layers_the_table_has():
    rows = [{"source": "a", "target": "b", "source_layer": layer, "target_layer": layer, "value": 0.25 + layer / 100,
             "low": 0.2, "high": 0.6, "cosine": 0.9} for layer in range(30)]  # fmt: skip
    scalars = {"documents": 11.0, "effective_sample_size": 8.6, "batches": 4.0, "rows": 4096.0}
    shown = said("distance", made(pd.DataFrame(rows), scalars, config={"data": {"name": "pydoc"}}))
    assert "(16 of 30 layers; result.details has all)" in shown
    assert "Computed on pydoc: 4 batches of 1,024 tokens, 11 documents (effective sample size 8.6)." in shown
    next_layer = "layer 1 (0.26 [0.2, 0.6]; the intervals overlap)"
    assert f"They are most similar at layer 0, not shown to be beyond the next, {next_layer}." in shown
    assert shown.endswith("95 % intervals are over documents.")


def test_documents_that_count_as_one_are_told():
    rows = [{"source": "a", "target": "b", "source_layer": 0, "target_layer": 0, "value": 0.25, "low": 0.2, "high": 0.6,
             "cosine": 0.9}]  # fmt: skip
    scalars = {"documents": 7.0, "effective_sample_size": 7.0, "batches": 1.0, "rows": 928.0}
    config = {"data": {"name": "pydoc", "group": "author"}}
    shown = said("distance", made(pd.DataFrame(rows), scalars, config=config))
    assert "Computed on pydoc (documents of one author count as one): 1 batch" in shown


# ---- the ruler, and readings of other measures


def readings(**columns) -> pd.DataFrame:
    """Three layer pairs, the first of which is not above its control."""
    table = pd.DataFrame({
        "source": "a", "target": "b", "source_layer": [0, 2, 4], "target_layer": [0, 1, 2],
        "value": [0.65, 0.32, 0.46], "low": [0.6, 0.3, 0.42], "high": [0.7, 0.34, 0.5],
        "above_local_mixing": [-0.04, 0.3, 0.2], "above_local_mixing_low": [-0.1, 0.2, 0.1],
        "source_local_mixing": [0.69, 0.01, 0.2], "target_local_mixing": [0.5, 0.02, 0.26],
    })  # fmt: skip
    for side in ("source", "target"):
        table[f"{side}_equivalent_bits"] = [2.0, 3.67, 4.1]
        table[f"{side}_equivalent_bits_low"] = [2.0, 3.66, 4.0]
        table[f"{side}_equivalent_bits_high"] = [3.0, 3.68, 4.2]
    return table.assign(**columns)


def test_the_named_layer_pair_is_the_most_similar_above_its_control():
    assert sentence_of_pairs_above_control(readings(), "CKA") == (
        "CKA of a and b is above the local-mixing control at 2 of 3 layer pairs. The most similar of these 2 pairs is "
        "layer 4 of a and layer 2 of b: CKA 0.46 [0.42, 0.50], control 0.26, beyond the next, layer 2 of a and layer 1 "
        "of b (0.32 [0.30, 0.34]; the intervals do not overlap). These layers are as similar as a is to "
        "its copy rounded to 4.1 bits, and as b is to its copy rounded to 4.1 bits. At 0→0 it is not above: the "
        f"layers are {NO_MORE_SIMILAR}."
    )


def test_all_layer_pairs_and_none_above_the_control_are_said():
    above = sentence_of_pairs_above_control(readings(above_local_mixing=0.2, above_local_mixing_low=0.1), "CKA")
    assert above.startswith("CKA of a and b is above the local-mixing control at all 3 layer pairs. The most similar")
    one = readings(above_local_mixing=[-0.1, -0.1, 0.2], above_local_mixing_low=[-0.2, -0.2, 0.1])
    assert "the next" not in sentence_of_pairs_above_control(one, "CKA"), "there is no next pair"
    none = sentence_of_pairs_above_control(readings(above_local_mixing=-0.1, above_local_mixing_low=-0.2), "CKA")
    assert "at none of 3 layer pairs" in none
    assert "as similar as" not in none, "what the control explains is no similarity"


def test_states_without_copies_are_as_similar_as_no_copy():
    bare = readings(source_equivalent_bits=math.nan, target_equivalent_bits=math.nan)
    assert "the intervals do not overlap). At 0→0" in sentence_of_pairs_above_control(bare, "CKA")


def test_bits_have_the_decimals_that_their_intervals_need():
    assert bit_width_cells(readings(), "source") == ["none", "3.67 [3.66, 3.68]", "4.10 [4.00, 4.20]"]
    wide = readings(source_equivalent_bits_low=3.0, source_equivalent_bits_high=5.0)
    assert bit_width_cells(wide, "source")[1] == "3.7 [3.0, 5.0]", "control"


def test_what_stands_in_the_place_of_bits_is_explained(capsys):
    show_bit_widths(readings(), "title", "CKA")
    shown = " ".join(capsys.readouterr().out.split())
    assert "none: the layers are not above the local-mixing control." in shown
    assert "below 2" not in shown
    show_bit_widths(readings(above_local_mixing=0.2, above_local_mixing_low=0.1), "title", "CKA")
    shown = " ".join(capsys.readouterr().out.split())
    assert "below 2: less similar than the copy of 2 bits." in shown
    assert "none" not in shown, "control"


# ---- RSA


def similarities(p: float | None = None) -> pd.DataFrame:
    """The similarity of two layers of each of two models, both ways; z comes before a, as it was given."""
    places = [("z", 0), ("z", 1), ("a", 0), ("a", 1)]
    rows = []
    for source, source_layer in places:
        for target, target_layer in places:
            value = 0.875 if {(source, source_layer), (target, target_layer)} == {("z", 1), ("a", 0)} else -0.0001
            rows.append({"source": source, "target": target, "source_layer": source_layer,
                         "target_layer": target_layer, "value": value, "low": value, "high": value})  # fmt: skip
    table = pd.DataFrame(rows)
    return table if p is None else table.assign(p=p, p_corrected=2 * p)


def compared(table: pd.DataFrame, **settings: object):
    provenance = {"stimuli": {"count": 24, "source": "words.csv"}}
    return made(table, {}, provenance, config={"measure": {"comparator": "spearman", **settings}})


def test_the_most_similar_layers_come_first_in_the_order_given_with_the_p_that_was_asked_for():
    best = "Most similar of all 4 layer pairs: layer 1 of z and layer 0 of a, Spearman's ρ 0.875 [0.875, 0.875]"
    assert said("rsa", compared(similarities())).startswith(f"{best}. ")
    untested = said("rsa", compared(similarities(), permutations=0))
    assert untested.startswith(f"{best}; whether that is more than by chance (permutations=99) was not computed. ")
    assert "need not be near 0" not in untested
    tested = said("rsa", compared(similarities(p=0.01)))
    assert tested.startswith(f"{best}, one-sided p = 0.01, and 0.02 corrected for all pairs of layers. ")
    assert "Permuted values need not be near 0" in tested
    assert "-0.000" not in tested
    assert "Spearman's ρ of the distances of stimuli, z (rows) and a (columns): 0 1 0 ● 1 ██●" in tested


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [(4, "not computed, as there are 4 and at least 10 are needed"),
     (40, "not computed, as they are all equally far apart in every layer")],
)  # fmt: skip
def test_one_reason_says_why_there_is_nothing_given_the_word(pairs, reason):
    result = compared(similarities().assign(conditional_on_word=math.nan))
    vars(result)["_record"]["scalars"]["pairs_of_one_word"] = float(pairs)
    assert f"Conditional on the word (pairs of stimuli of one word): {reason}." in said("rsa", result)


# ---- diff


def changed(effects: list[float], tokens: pd.DataFrame | None = None, kl: float = 0.1, **text):
    """A diff whose modules have these effects of restoring."""
    table = pd.DataFrame({
        "component": "MLP", "layer": range(len(effects)), "relative_weight_change": 0.01, "onset": 0.1,
        "restoring_effect": effects, "transplanting_effect": effects, "mean_effect": effects,
    })  # fmt: skip
    numbers = {"tokens": 512.0, "modules": float(len(effects)), "kl": kl, "documents": 20.0}
    more = {} if tokens is None else {"tokens": tokens}
    named = {"models": [{"name": "base"}, {"name": "tuned"}]}
    return made(table, numbers, named, config={"data": {"name": "pydoc", **text}}, **more)


def test_a_spread_out_change_is_said_in_one_sentence():
    names = ["'pe'", "'thor'", "' Zel'", "'of'"]
    tokens = pd.DataFrame({"token": names, "factor": [9.0, 8.0, 7.0, 20.0], "q": [0.01, 0.01, 0.01, 0.5]})
    assert summary_sentence(changed([0.05, 0.18, -0.2], tokens)) == (
        "base → tuned: all 3 modules changed, in the median by 1 % of their norm; KL is 0.1 nats per token; the effect "
        "is spread over modules: putting any one module of the base back removes at most 18 % of the KL (MLP 1); "
        "largest after 'pe', 'thor', ' Zel'; text: pydoc, 512 tokens."
    )


@pytest.mark.parametrize(
    ("effects", "words"),
    [([0.9, 0.1], "the effect is concentrated: putting MLP 0 of the base back removes 90 % of the KL"),
     ([-0.1, 0.001], "putting any one module of the base back into the changed model removes none of the KL")],
)  # fmt: skip
def test_where_the_effect_lies(effects, words):
    assert words in summary_sentence(changed(effects))


def test_the_largest_effect_is_that_of_modules_that_were_exchanged():
    """Of many modules, only some are."""
    some = "putting any one of the 2 exchanged modules of the base back"
    assert f"{some} removes at most 18 % of the KL" in summary_sentence(changed([0.05, 0.18, math.nan]))
    assert f"{some} into the changed model removes none" in summary_sentence(changed([-0.1, 0.001, math.nan]))


@pytest.mark.parametrize(("context", "tokens"), [(None, "128"), (48, "96"), (256, "256"), (2048, "512")])
def test_a_choice_of_modules_says_on_how_many_tokens_it_was_made(context, tokens):
    """Whole rows of about 128 tokens, and no more than there are."""
    result = changed([0.05, 0.18, math.nan], context=context)
    said = choice_of_modules_in_words(result)
    assert said.startswith("Only 2 of 3 changed modules were exchanged: those with the largest transplanting effect")
    assert f"on the first {tokens} tokens;" in said
    assert choice_of_modules_in_words(changed([0.05, 0.18])) == ""
    assert choice_of_modules_in_words(changed([math.nan, math.nan])) == ""


def test_modules_at_which_states_begin_to_differ_are_all_of_them_or_nearly_all():
    table = changed([0.1] * 12).details
    table["onset"] = [0.3] + [0.001] * 10 + [0.0]
    said_of_most = (
        "At least 90 % of the differences that modules make to states begin in these modules, given equal input "
        "(numbers of blocks): MLP 0."
    )
    assert onsets_in_words(table) == said_of_most
    table["onset"] = [0.3, 0.2] + [0.0] * 10
    assert (
        onsets_in_words(table)
        == "States begin to differ in these modules, given equal input (numbers of blocks): MLP 0 to 1."
    )
    table["onset"] = [0.5, 0.2] * 6
    table["component"] = ["MLP", "attention"] * 6
    table["layer"] = [layer * 3 for layer in range(12)]
    in_many = (
        "At least 90 % of the differences that modules make to states begin in 10 modules, given equal input, most of "
        "all in MLP 0 "
        "(by 0.5 of their norm)."
    )
    assert onsets_in_words(table) == in_many


@pytest.mark.parametrize(
    ("massive", "words"),
    [({"massive_states": 8}, "of the change of the states, without 8 states with massive activations (cosine with"),
     ({"massive_states": 1}, "of the change of the states, without 1 state with massive activations (cosine with"),
     ({"massive_states": 0}, "holds 43 % of the mean square of the change of the states (cosine with"),
     ({}, "holds 43 % of the mean square of the change of the states (cosine with")],
)  # fmt: skip
def test_directions_say_that_massive_states_were_left_out(massive, words):
    row = {"layer": 24, "share_of_change": 0.432, "stability": 0.99, "raises": "' a'", "lowers": "' b'", **massive}
    table = pd.DataFrame([row, row])
    assert words in directions_in_words(table, changed([0.1]).details, {})


@pytest.mark.parametrize(("unread", "which"), [(30.0, "them"), (4000.0, "a random sample of them")])
def test_many_tokens_that_the_text_lacks_are_sampled(unread, which):
    numbers = {"tokens": 9.0, "tokens_unread": unread, "tokens_changed": 5000.0, "unread_kl": 0.1}
    assert f"differs; after {which}, inserted into the text, KL is 0.1." in verdict_in_words(numbers, {})


def test_modules_that_only_fit_their_own_model_have_no_share_of_the_change():
    apart = changed([-6.2, -8.4]).details
    said_of_them = effects_in_words("module", ["MLP 0", "MLP 1"], apart, apart)
    assert said_of_them == (
        "Putting one module of the base back into the changed model does not lower the KL but raises it: MLP 1 to "
        "9.4 times, MLP 0 to 7.2 times what it is."
    )
    some = changed([0.4, 0.1]).details
    assert effects_in_words("module", ["MLP 0", "MLP 1"], some, some).endswith(
        "MLP 0: restoring 40 %, transplanting 40 %; MLP 1: restoring 10 %, transplanting 10 %."
    )


def test_exchanges_that_change_nothing_neither_lower_nor_raise_the_kl():
    names = ["MLP 0", "MLP 1"]
    nothing = changed([0.0, -1e-6]).details
    assert effects_in_words("module", names, nothing, nothing) == (
        "Putting one module of the base back into the changed model, or the reverse, does not change the KL."
    )
    assert effects_in_words("head", names, nothing, nothing, is_repeated=True) == (
        "Exchanging one head does not change the KL."
    )
    some_raise = changed([0.0, -2.0]).details
    assert effects_in_words("module", names, some_raise, some_raise).endswith(
        "does not lower the KL but raises it: MLP 1 to 3 times what it is."
    )


def test_an_effect_of_transplanting_alone_is_a_share():
    redundant = changed([0.0, 0.0]).details.assign(transplanting_effect=1.0, mean_effect=0.5)
    sentence = effects_in_words("module", ["MLP 0", "MLP 1"], redundant, redundant)
    assert sentence.endswith("MLP 1: restoring 0 %, transplanting 100 %.")


def test_restoring_and_transplanting_stand_beside_one_another():
    unlike = changed([0.04, 0.02]).details.assign(
        transplanting_effect=[0.42, 0.1], mean_effect=[0.23, 0.06], mean_effect_low=[0.2, 0.05], mean_effect_high=0.25
    )
    shares = "MLP 0: restoring 4 %, transplanting 42 %; MLP 1: restoring 2 %, transplanting 10 %."
    names = ["MLP 0", "MLP 1"]
    assert effects_in_words("module", names, unlike, unlike).endswith(f"(transplanting): {shares}")
    again = effects_in_words("head", names, unlike, unlike, is_repeated=True, which=", of 8 that were exchanged")
    two = "MLP 0: 4 % and 42 %, MLP 1: 2 % and 10 %."
    assert again == f"The same two shares for one head, of 8 that were exchanged: {two}"


def test_each_share_has_its_interval_unless_documents_are_too_few():
    certain = changed([0.04, 0.02]).details.assign(
        restoring_effect_low=[0.01, -math.inf], restoring_effect_high=[0.07, math.inf],
        transplanting_effect=[0.42, 0.1], transplanting_effect_low=0.05, transplanting_effect_high=0.5,
    )  # fmt: skip
    sentence = effects_in_words("module", ["MLP 0", "MLP 1"], certain, certain)
    first = "MLP 0: restoring 4 % [1 %, 7 %], transplanting 42 % [5 %, 50 %]"
    assert sentence.endswith(f"{first}; MLP 1: restoring 2 %, transplanting 10 % [5 %, 50 %].")


def outputs_of(attentions: int, tried: list[int], **columns):
    """Outputs of the first attentions, and heads of attention 0, that were exchanged."""
    rows = [{"output": "attn_out", "layer": layer, "head": math.nan} for layer in range(attentions)]
    rows += [{"output": "z", "layer": 0, "head": float(head)} for head in tried]
    return pd.DataFrame(rows).assign(restoring_effect=0.5, transplanting_effect=0.4, **columns)


def test_the_screen_says_how_many_heads_there_are_and_which_were_tried():
    all_tried = _outputs_in_words(outputs_of(1, [0, 1, 2], heads=3.0), True, 4, 128)
    assert "one head, of all 3 of attention 0: head 0.0: 50 % and 40 %" in all_tried
    assert "were chosen" not in all_tried
    some = _outputs_in_words(outputs_of(2, [4, 7], heads=9.0), True, 4, 128)
    assert "one head, of 2 that were exchanged of the 18 of attention 0 to 1: head 0.4" in some
    assert "The heads were chosen by their transplanting effect on the first 128 tokens." in some
    both = _outputs_in_words(outputs_of(2, [4, 7], heads=9.0), True, 2, 128)
    assert "The outputs and heads were chosen by" in both
    earlier = _outputs_in_words(outputs_of(1, [4, 7]), True, 4, 128)
    assert "one head, of 2 that were exchanged, of attention 0: head 0.4" in earlier


def test_a_kl_that_rises_by_less_than_the_digits_shown_is_not_said_to_rise():
    slightly = pd.DataFrame(
        {"restoring_effect": [-0.01, -0.6], "transplanting_effect": [0.1, 0.1], "mean_effect": [0.05, -0.25]}
    )
    sentence = effects_in_words("head", ["head 3.0", "head 3.1"], slightly, slightly)
    assert "head 3.1 to 1.6 times what it is" in sentence
    assert "head 3.0" not in sentence


def test_weights_that_were_trained_separately_are_said_to_be():
    seeds = changed([0.1, 0.2])
    assert "separately" not in summary_sentence(seeds)
    vars(seeds)["details"]["relative_weight_change"] = 1.41
    assert "in the median by 141 % of their norm, as far as weights that were trained separately;" in summary_sentence(
        seeds
    )


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ([1.43, 0, 0, 0], False),  # a single entry of one module
        ([1.43, 2.0, 0, 0, 0], False),  # the signs of one, too
        ([1.5, math.nan, 0, 0], False),  # an adapter beside it
        ([1.5, 1.5, 0.01, 0.01, 0.01], False),
        ([1.41, 1.41, 1.41, 0], True),  # but one module is shared
        ([1.41, 1.39, 1.2, 1.44], True),
    ],
)
def test_one_module_says_nothing_of_how_models_were_trained(changes, is_said):
    edited = changed([0.1] * len(changes))
    vars(edited)["details"]["relative_weight_change"] = changes
    assert ("separately" in summary_sentence(edited)) == is_said


def test_equal_predictions_and_equal_models_are_said():
    assert "and no prediction differs; text: pydoc, 512 tokens." in summary_sentence(changed([0.0], kl=0.0))
    equal = changed([0.0])
    vars(equal)["_record"]["scalars"]["tokens"] = 0.0
    assert summary_sentence(equal) == "tuned equals base: all weights, settings and tokenizers are the same."


# ---- trajectories


def trajectory(losses: list[float], onsets: dict[str, float]):
    """A result of a trajectory of three checkpoints of a model with six layers."""
    steps = [0, 10, 100]
    rows = [
        {"step": step, "layer": layer, "similarity_to_last": 0.5, "speed": math.nan if step == 0 else 0.25}
        for step in steps
        for layer in range(6)
    ]
    tables = {
        "losses": pd.DataFrame({"step": steps, "loss": losses}),
        "onsets": pd.DataFrame([{"layer": 0, "feature": feature, "onset": onset} for feature, onset in onsets.items()]),
    }
    scalars = {"loss_settles": 77.0, "similarity_settles": 50.0, "documents": 9.0, "effective_sample_size": 8.5}
    provenance = {"models": [{"name": "a@step100"}]}
    return made(pd.DataFrame(rows), scalars, provenance, config={"data": {"name": "pydoc"}}, **tables)


def test_a_trajectory_says_what_the_loss_did_and_names_the_text():
    fell = said("trajectory", trajectory([7.5, 4.0, 3.25], {"Tense": 10.0}))
    assert fell.startswith("The loss falls from 7.500 to 3.250 nats per token, nine tenths of the way by step 77; ")
    assert "Text: pydoc, 9 documents (effective sample size 8.5)." in fell
    assert "nothing has been learnt" not in fell
    assert "(3 of 6 layers; result.details has all)" in fell
    rose = said("trajectory", trajectory([7.5, 9.0, 10.25], {"Tense": 0.0, "Gender": math.nan}))
    assert rose.startswith("The loss rises from 7.500 to 10.250 nats per token, ")
    assert "settled" not in rose.lower()
    assert "Tense from step 0 in layer 0; at step 0 nothing has been learnt yet." in rose


# ---- what a value is


@pytest.mark.parametrize("kind", [entry.kind for entry in layer_measures()])
def test_every_measure_of_layer_pairs_says_what_a_value_is(kind):
    meaning = instrument(MEASURES[kind]).meaning(made(pd.DataFrame(), config={"measure": {"neighbours": 7}}))
    assert meaning.endswith(".")
    if kind == "mutual_knn":
        assert "a row's 7 nearest neighbours by cosine" in meaning
