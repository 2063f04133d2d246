"""measure=diff: parts of models, changes planted in one part, verdicts, and what the screen says."""

import contextlib
import math
import sys
from copy import deepcopy
from unittest import mock

import pandas as pd
import pytest
import torch

import thinkalike
import tiny
from conftest import kill_and_resume, results_in
from thinkalike.cli import as_analysis
from thinkalike.config.compose import read_overrides, with_quoted_paths
from thinkalike.data.rows import TokenRows
from thinkalike.errors import ConfigError, ModelError
from thinkalike.evaluation.changes import compare_batches, perturbed, token_distances
from thinkalike.evaluation.exchanges import exchange_outputs, exchange_parts
from thinkalike.evaluation.forks import (
    PartMove,
    beyond_forks,
    comparable_with_forks,
    fork,
    learning_rate_for_norm,
    part_moves,
)
from thinkalike.instruments.diff.directions import rows_of_directions
from thinkalike.instruments.diff.observations import Observations
from thinkalike.instruments.diff.outcome import worst_verdict
from thinkalike.instruments.diff.ranges import module_names
from thinkalike.instruments.diff.screen import LEAST_Z_NAMED, screen_lines
from thinkalike.instruments.diff.tables import _mean_distance
from thinkalike.measures.changes import kl_of_rounding
from thinkalike.models.load import load_model
from thinkalike.models.module_facts import TOLERANCE, relative_error
from thinkalike.models.parts import changed_parts, check_same_structure, exchanged, norms_of_change_and_base, parts_of
from thinkalike.models.variants import variant
from thinkalike.states.contrasts import kind_of_token

TOKENS = torch.randint(200, (8, 16), generator=torch.Generator().manual_seed(0))
ROWS = TokenRows(TOKENS, torch.arange(8)[:, None].expand(8, 16))


def pair(change=None):
    """A model, and a copy of it that was changed."""
    base, changed = tiny.frozen(), tiny.frozen()
    if change:
        with torch.no_grad():
            change(changed.module)
    return base, changed


def noise_in(path, size=0.3):
    def change(module):
        for weight in module.get_submodule(path).parameters():
            weight.data = weight + size * weight.std() * torch.randn(weight.shape)

    return change


@pytest.fixture(scope="module")
def families(checkpoints, tmp_path_factory):
    llama = tiny.write_llama(tmp_path_factory.mktemp("llama"))
    folders = {**{family: checkpoints[family] for family in ("gpt_neox", "gpt2", "mamba")}, "llama": llama}
    return {"native": tiny.frozen(), **{name: load_model(folder) for name, folder in folders.items()}}


@pytest.mark.parametrize("family", ["native", "gpt_neox", "gpt2", "mamba", "llama"])
def test_every_weight_is_in_one_part(families, family):
    model = families[family]
    parts = parts_of(model)
    for name, _ in model.module.named_parameters(remove_duplicate=False):
        assert sum(name.startswith(f"{path}.") for part in parts for path in part.paths) == 1, name
    named = {part.component for part in parts}
    last = {"unembedding"} if len(parts[0].paths) == 1 or family == "native" else set()  # else it is tied
    assert named == {"embedding", "norms", *last, *(["mixer"] if family == "mamba" else ["attention", "MLP"])}


@pytest.mark.parametrize("family", ["native", "gpt2", "llama"])
def test_a_model_with_all_parts_of_another_is_the_other(families, family):
    model = families[family]
    other = deepcopy(model)
    tiny.jiggled(other.module, 0.05)
    before, wanted = model.fingerprint(), other.full(TOKENS)
    with contextlib.ExitStack() as parts:
        for part in parts_of(model):
            parts.enter_context(exchanged(model, other, part))
        assert torch.allclose(model.full(TOKENS), wanted, atol=1e-5)
    assert not torch.allclose(model.full(TOKENS), wanted, atol=1e-2), "control"
    assert model.fingerprint() == before


@pytest.mark.parametrize(
    ("path", "component", "layer"),
    [("layers.2.mlp", "MLP", 2), ("layers.0.attn", "attention", 0), ("head", "unembedding", 4),
     ("tok_embed", "embedding", -1)],
)  # fmt: skip
def test_a_change_of_one_part_is_found_there_and_nowhere_else(path, component, layer):
    base, changed = pair(noise_in(path))
    (part,) = changed_parts(base, changed)
    assert (part.component, part.layer) == (component, layer)
    batches, changes = zip(*compare_batches(base, changed, ROWS, 8), strict=True)
    others = [each for each in parts_of(base) if each != part]
    found = exchange_parts(base, changed, [part, *others], batches, 99)
    whole = torch.cat([each.tokens.kl for each in changes])
    assert whole.mean() > 1e-3
    assert found[part].without.abs().max() < 1e-6
    assert torch.allclose(found[part].alone, whole, rtol=1e-3, atol=1e-6)
    for each in others:
        assert torch.allclose(found[each].without, whole, rtol=1e-3, atol=1e-6)
        assert found[each].alone.abs().max() < 1e-6
    distance = torch.cat([each.distance for each in changes], 1).mean(1)
    assert [place for place, value in enumerate(distance) if value > 1e-6] == list(range(layer + 1, 5))


def test_tokens_whose_state_was_zero_are_left_out_of_relative_distances():
    x = torch.randn(2, 4, 3)
    y = 1.5 * x
    x[0, 1] = 0
    x[1, 2] = y[1, 2] = 0
    distances = token_distances(x, y)
    assert distances.isnan().nonzero().flatten().tolist() == [1, 5]
    means = _mean_distance("distance", distances, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert means["distance"] == pytest.approx(0.5)
    assert math.isnan(_mean_distance("distance", distances[[1]], torch.tensor([0]))["distance"])
    y[0, 0] = math.nan
    assert token_distances(x, y)[0] == math.inf, "control: a state that is not a number is not left out"


def test_equal_outputs_of_a_head_have_no_effect():
    base, changed = pair(noise_in("head", 0.001))
    batches, changes = zip(*compare_batches(base, changed, ROWS, 8), strict=True)
    whole = torch.cat([change.tokens.kl for change in changes])
    outputs = exchange_outputs(base, changed, batches, 2)
    assert {point.site for point in outputs} >= {"z"}
    for exchange in outputs.values():
        assert torch.equal(exchange.without, whole)
        assert not exchange.alone.any()


def test_of_many_parts_those_that_change_most_are_exchanged():
    def change(module):
        noise_in("layers.3.mlp", 1.0)(module)
        for layer in range(4):
            noise_in(f"layers.{layer}.attn", 0.02)(module)

    base, changed = pair(change)
    batches, _ = zip(*compare_batches(base, changed, ROWS, 8), strict=True)
    found = exchange_parts(base, changed, changed_parts(base, changed), batches, 1)
    assert [str(part) for part, each in found.items() if each.without is not None] == ["MLP 3"]
    assert all(each.entering is not None for each in found.values())
    assert len(found) == 5


def test_states_of_first_tokens_do_not_decide_the_directions():
    """A massive state that changes by a tenth changes more than all others together."""

    def massive_first_token(module, factor=1.0):
        module.pos.weight[0] = 3000.0 * factor * torch.ones(32).cumsum(0) / 32

    def change(module):
        massive_first_token(module, 1.1)
        noise_in("layers.1.mlp", 1.0)(module)

    base, changed = pair(change)
    with torch.no_grad():
        massive_first_token(base.module)
    observed = Observations(base, changed, ROWS, len(ROWS), {})
    batches = observed.read()
    observed.parts = exchange_parts(base, changed, changed_parts(base, changed), batches, 4)
    rows = rows_of_directions(observed, batches)
    assert {row["layer"] for row in rows} == {1}
    assert {row["massive_states"] for row in rows} == {len(TOKENS)}
    assert rows[0]["share_of_change"] < 0.9
    with mock.patch("thinkalike.instruments.diff.directions.massive", return_value=None):
        assert rows_of_directions(observed, batches)[0]["share_of_change"] > 0.99, "control"


def test_random_changes_are_as_large_and_undo_themselves():
    base, changed = pair(noise_in("layers.1.mlp"))
    before = base.fingerprint()
    (batch, change), *_ = compare_batches(base, changed, ROWS, 8)
    weight = base.module.layers[1].mlp.fc_in.weight
    wanted = (changed.module.layers[1].mlp.fc_in.weight - weight).norm()
    own = weight.clone()
    null = []
    for seed in range(19):
        with perturbed(base, changed, changed_parts(base, changed), seed) as model:
            assert torch.isclose((weight - own).norm(), wanted, rtol=1e-5)
            null.append(batch.kl(model, 1, batch.base))
    null = torch.stack(null)
    assert null.mean(1).unique().numel() == 19
    assert 0.2 < change.tokens.kl.mean() / null.mean() < 5, "noise is as its own null"
    assert base.fingerprint() == before


def test_models_of_another_shape_are_refused(families):
    base = tiny.frozen()
    with pytest.raises(ModelError, match=r"d_model=32 and tiny-0 48.*measure=.cka"):
        check_same_structure(base, tiny.frozen(d_model=48, d_head=12))
    with pytest.raises(ModelError, match="different modules"):
        check_same_structure(base, families["gpt_neox"])


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """Folders of a mini, and of one with noise in the MLP of block 2."""
    root = tmp_path_factory.mktemp("forks")
    torch.manual_seed(0)
    tiny.write_mini(root / "base")
    module = tiny.native()
    with torch.no_grad():
        noise_in("layers.2.mlp", 1.0)(module)
    tiny.write_mini(root / "changed", module=module)
    return root


QUICK = ["measure.outputs=0", "measure.taught=false"]


@pytest.fixture
def words(forks, text_files, tmp_path):
    """Makes the words of a job that asks neither which outputs carry a change nor what it taught."""

    def make(changed, *more):
        data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_share=0.4", "data.context=32"]
        return [f"model={forks}/base", f"model@target={forks}/{changed}", "measure.tokens=1024", *data,
                "measure.tokens_per_part=512", "logger=none", f"store={tmp_path}/results", *QUICK, *more]  # fmt: skip

    return make


@pytest.mark.drawn
def test_a_job_names_the_part_that_changed_on_one_screen(cli, words):
    whole = [word for word in words("changed") if word not in QUICK]
    run = cli("analyze.py", "measure=diff", *whole, env={"COLUMNS": "80"})
    result = run.result
    table = result.table.set_index(["component", "layer"])
    assert table["mean_effect"].idxmax() == ("MLP", 2)
    assert table.loc[("MLP", 2), "restoring_effect"] == pytest.approx(1, abs=1e-3)
    assert (table["relative_weight_change"] > 0).sum() == 1
    numbers = result.scalars
    assert numbers["kl_low"] < numbers["kl"] < numbers["kl_high"]
    assert numbers["loss_change"] == pytest.approx(numbers["loss_changed"] - numbers["loss_base"])
    assert result.tables["nulls"]["kind"].value_counts().to_dict() == {"permuted": 19, "signs": 19}
    screen = run.stdout.splitlines()
    assert len(screen) <= 36
    assert max(map(len, screen[:-1])) <= 80
    said = " ".join(result.instrument.said(result).split())
    base, changed = (model["name"] for model in result.provenance["models"])
    assert said.startswith(f"{base} → {changed}: 1 of 15 modules changed"), "the first sentence is the answer"
    first = said.partition("How much?")[0]
    assert "the effect is concentrated: putting MLP 2 of the base back removes 100 % of the KL" in first
    assert "States begin to differ in these modules, given equal input (numbers of blocks): MLP 2." in said
    assert [path.name for path in result.figures] == ["diff.png", "diff.svg"]


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("changed", "margin", "status"), [("changed", 100.0, 0), ("changed", 1e-6, 1), ("base", 1e-6, 0)]
)
def test_the_exit_status_says_whether_the_models_are_equivalent(cli, words, changed, margin, status):
    run = cli("analyze.py", "measure=diff", *words(changed, f"measure.margin.kl={margin}"))
    assert run.status == status, run.stderr
    (result,) = results_in(cli.folder / "results", "diff")
    assert result.scalars["exit_status"] == status
    said = "Equivalent: the models are equal" if changed == "base" else "Equivalent by two"
    assert (said in run.stdout.replace("\n", " ")) == (status == 0)


@pytest.mark.ci_slow
def test_few_documents_have_no_interval_and_decide_nothing(cli, words):
    few = ["measure.tokens=64", "measure.tokens_per_part=64", "measure.margin.flips=0.5"]
    run = cli("analyze.py", "measure=diff", *words("changed", *few))
    assert run.status == 3, run.stderr
    (result,) = results_in(cli.folder / "results", "diff")
    assert "kl_low" not in result.scalars
    assert result.table["mean_effect"].max() == pytest.approx(1, abs=1e-3)
    assert result.table["mean_effect_low"].isna().all()


@pytest.mark.ci_slow
def test_the_command_is_the_same_job(cli, words, forks):
    from thinkalike import cli as commands

    own = cli("analyze.py", "measure=diff", *words("changed", "measure.margin.kl=1e-6"))
    given = words("changed", "margin.kl=1e-6")[2:]
    rest = [word if word in QUICK else word.replace("measure.", "") for word in given]
    with (
        mock.patch.object(commands, "COMMANDS", dict(commands.COMMANDS)),
        mock.patch.dict(sys.modules, cli_main=commands),
    ):
        again = cli("cli_main", "diff", f"{forks}/base", f"{forks}/changed", *rest)
    assert (own.status, again.status) == (1, 1), again.stderr
    assert own.stdout.splitlines()[-1] == again.stdout.splitlines()[-1]
    with mock.patch.dict(sys.modules, cli_main=commands):
        assert "takes two models" in cli("cli_main", "diff", f"{forks}/base", "margin.kl=1").error


@pytest.mark.parametrize("name", ["lr=3e-4 ann's", "\\'a=b", "{it's}", "a=b\\", "run ", " a", "a,b"])
def test_a_model_in_the_working_folder_may_have_any_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    words = with_quoted_paths(as_analysis(["gpt2", name]))
    assert read_overrides(words)[-1].value == f"./{name}"


def test_paths_with_an_equals_sign_are_models(cli, tmp_path):
    file = tmp_path / "epoch=0-step=500.ckpt"
    file.touch()
    assert as_analysis(["gpt2", str(file), "margin.kl=1"])[2:] == [f"model@target='{file}'", "measure.margin.kl=1"]
    with pytest.raises(ConfigError, match="two models"):
        as_analysis(["gpt2", "epoch=1"])
    assert "no config.json" in cli("analyze.py", "measure=diff", "model=gpt2-mini", f"model@target={file}").error


@pytest.mark.ci_slow
def test_a_fork_has_the_norm_asked_for_and_freezes_the_rest():
    base = tiny.frozen()
    before = base.fingerprint()
    whole = fork(base, TOKENS, 0.5, seed=0, steps=8)
    assert norms_of_change_and_base(base, whole)[0] == pytest.approx(0.5, rel=1e-4)
    losses = [torch.nn.functional.cross_entropy(model.full(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
              for model in (base, whole)]  # fmt: skip
    assert losses[1] < losses[0]
    part = fork(base, TOKENS, 0.5, seed=0, steps=8, paths=["layers.1.mlp"])
    assert [str(each) for each in changed_parts(base, part)] == ["MLP 1"]
    assert not any(weight.requires_grad for weight in part.module.parameters())
    assert base.fingerprint() == before
    assert fork(base, TOKENS, 0.5, seed=0, steps=8).fingerprint() == whole.fingerprint() != before
    rate = learning_rate_for_norm(base, TOKENS, 0.5, 8)
    forked = fork(base, TOKENS, 0.5, 0, rate=rate, steps=8)
    assert norms_of_change_and_base(base, forked)[0] == pytest.approx(0.5, rel=1e-4)
    assert 0.1 < rate / learning_rate_for_norm(base, TOKENS, 1.0, 8) < 0.9


def forks_of_noise(count, seed, parts=6, width=24):
    """Changes of parts that share a direction and differ by noise."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(parts, width, width, generator=generator)
    return [[change(common[part] + torch.randn(width, width, generator=generator)) for part in range(parts)]
            for _ in range(count)]  # fmt: skip


def change(matrix):
    return PartMove(matrix.flatten(), float(torch.linalg.matrix_norm(matrix, 2).log()))


@pytest.mark.parametrize("kind", ["without what forks share", "in one direction"])
def test_a_part_is_found_by_the_direction_it_moved_in(kind):
    first, *others = forks_of_noise(20, 1)
    weights = first[4].weights.view(24, 24)
    if kind == "in one direction":
        aim = torch.randn(24, 1) @ torch.randn(1, 24)
        planted = weights + 0.5 * aim / aim.norm() * weights.norm()
    else:
        planted = torch.randn(24, 24)
    first[4] = change(planted / planted.norm() * weights.norm())
    beyond, p = beyond_forks(first, others)
    assert (beyond.argmax(), p) == (4, 0.05)
    assert beyond[4] > 2 * beyond[[0, 1, 2, 3, 5]].max()


@pytest.mark.ci_slow
def test_forks_beside_forks_raise_as_many_alarms_as_they_may():
    alarms = [
        beyond_forks(runs[0], runs[1:])[1] <= 0.05 for runs in (forks_of_noise(20, seed, 4, 6) for seed in range(800))
    ]
    assert 0.03 < sum(alarms) / len(alarms) < 0.07


def test_moves_are_those_of_the_weights():
    base, changed = pair(noise_in("layers.2"))
    found = dict(zip(map(str, parts_of(base)), part_moves(base, changed, parts_of(base)), strict=True))
    own, other = (dict(model.module.layers[2].mlp.named_parameters()) for model in (base, changed))
    changes = [other[name] - weight for name, weight in own.items()]
    largest = [torch.linalg.matrix_norm(each, 2).log() for each in changes if each.dim() == 2]
    assert found["MLP 2"].log_singular_value == pytest.approx(float(sum(largest)) / len(largest), abs=1e-5)
    assert torch.equal(found["MLP 2"].weights, torch.cat([each.flatten() for each in changes]))
    assert found["MLP 1"].weights.abs().max() == 0


@pytest.mark.ci_slow
def test_the_null_of_drift_has_the_shares_of_its_forks(cli, words):
    run = cli("analyze.py", "measure=diff", *words("changed", "measure.null=continued_training", "measure.steps=4"))
    table = run.result.table.set_index(["component", "layer"])
    assert run.result.scalars["p_of_farthest_module"] == 0.05
    assert table.loc[("MLP", 2), "weight_change_beyond_control"] > 3
    assert table["weight_change_beyond_control"].notna().sum() == 1, "of parts that differ"
    assert "than the continued-training control." in " ".join(run.stdout.split())
    error = cli("analyze.py", "measure=diff", *words("changed", "measure.steps=3")).error
    assert "measure.steps= has no effect" in error


def test_kinds_of_tokens():
    cutter = tiny.tokenizer()
    kinds = {kind_of_token(cutter, token) for token in range(len(cutter))}
    assert {"special", "word", "rest of a word"} <= kinds
    assert kind_of_token(cutter, cutter.all_special_ids[0]) == "special"
    known = {" a": "word", "a": "rest of a word", "7": "number", ",": "punctuation", "\n": "white space"}
    for text, kind in known.items():
        (token,) = cutter(text, add_special_tokens=False)["input_ids"]
        assert kind_of_token(cutter, token) == kind, text


@pytest.fixture(scope="module")
def contrasted(tmp_path_factory):
    """Folders of a mini and of one of whose tokens one has another embedding, a table of pairs, and the word."""
    root, cutter = tmp_path_factory.mktemp("contrasted"), tiny.tokenizer()
    singles = [name for name in cutter.get_vocab() if name[0] == "Ġ" and len(name) > 2 and name[1:].isalpha()]
    (x, y, up, down, *words) = sorted(singles)[:24]
    rows = [
        f"a{w} b{s} a{x},a{w} b{s} a{y},{w[1:]},{up},{down}".replace("Ġ", " ")
        for w in words
        for s in words[:4]
        if w != s
    ]
    (root / "pairs.csv").write_text("\n".join(["text,counterpart,word,up,down", *rows]) + "\n")
    tiny.write_mini(root / "base")
    module, place = tiny.native(), cutter.get_vocab()[words[9]]
    with torch.no_grad():
        embeddings = next(module.get_submodule("tok_embed").parameters())
        embeddings[place] = -embeddings[place]
    tiny.write_mini(root / "changed", module=module)
    return root, words[9][1:]


@pytest.mark.ci_slow
def test_the_word_whose_contrast_changed_is_named(cli, words, contrasted):
    root, word = contrasted
    job = [f"model={root}/base", f"model@target={root}/changed", *words("base")[2:], "measure.contrast=table"]
    job = ["analyze.py", "measure=diff", *job, f"measure.path={root}/pairs.csv"]
    run = cli(*job, "measure.margin.word=100", "measure.margin.class=100")
    assert run.status == 0
    table, numbers = run.result.tables["words"], run.result.scalars
    assert table["word"][0] == word
    assert (table["q"] <= 0.05).sum() == 1
    assert numbers["contrast_base"] + numbers["contrast_change"] != pytest.approx(numbers["contrast_base"], abs=1e-4)
    assert f"more than the null and the remaining words change {word} by " in " ".join(run.stdout.split())
    assert table["change_low"][0] < table["change"][0] < table["change_high"][0]
    assert table["change"][1:].abs().max() < 1e-5, "control: other words"
    assert {"word", "rest of a word"} >= set(run.result.tables["classes"]["class"])
    assert cli(*job, "measure.margin.word=0.2", "measure.margin.class=100").status == 3
    assert worst_verdict(["equivalent", "undecided"]) == "undecided"
    assert worst_verdict(["equivalent", "not equivalent", "undecided"]) == "not equivalent"


@pytest.mark.parametrize(
    ("word", "message"),
    [("measure.contrast=table", "measure.path=FILE"), ("measure.path=pairs.csv", "measure.contrast=table"),
     ("measure.margin.word=1", "add measure.contrast"), ("measure.pairs=9", "measure.pairs= has no effect")],
)  # fmt: skip
def test_settings_of_a_contrast_go_together(cli, words, word, message):
    assert message in cli("analyze.py", "measure=diff", *words("changed", word)).error


@pytest.mark.slow
@pytest.mark.parametrize("state", ["parts", "null"])
def test_a_job_that_was_killed_goes_on_to_the_same_bits(cli, words, state):
    job = [
        word
        for word in words("changed", "measure.null=continued_training", "measure.steps=4")
        if not word.startswith("store=")
    ]
    resumed, whole = kill_and_resume(cli, "analyze.py", "measure=diff", *job, state=state)
    assert resumed.fingerprint() == whole.fingerprint()
    assert resumed.scalars == whole.scalars


@pytest.fixture(scope="module")
def mini():
    return load_model("gpt2-mini")


def said_of(mini, module, **settings):
    """The screen of a diff of gpt2-mini with a changed module, as one line, and the result."""
    result = thinkalike.diff((mini.module, mini.tokenizer), (module, mini.tokenizer), texts="grammar", **settings)
    return " ".join(screen_lines(result)), result


@pytest.mark.ci_slow
def test_a_tuned_model_moves_more_than_at_random_after_nearly_every_token(mini):
    text = torch.randint(mini.vocabulary, (64, 32), generator=torch.Generator().manual_seed(0))
    tuned = fork(mini, text, None, 0, rate=1e-3, steps=8)
    said, result = said_of(mini, tuned.module)
    tokens = result.tables["tokens"]
    moved = tokens["q_random"] <= 0.05
    assert moved.mean() > 0.8
    assert (tokens["kl"] > tokens["null_mean"])[moved].all()
    assert f"After {moved.sum()} of {len(tokens)} tokens" in said
    assert "predictions change more than by matched random changes" in said
    assert "More than by chance? Yes, more than matched random changes." in said
    numbers = result.scalars
    assert numbers["kl_of_compared_tokens"] != numbers["kl"]
    assert f"On {numbers['compared_tokens']:.0f} of these tokens" in said, "why there are two values of KL"
    assert numbers["compared_tokens"] < numbers["tokens"]


@pytest.mark.ci_slow
@pytest.mark.parametrize("kind", ["multiplied", "rounded", "added"])
def test_noise_in_proportion_to_weights_is_not_less_than_random_changes(mini, kind):
    """Random rows and columns take large changes off large weights; random signs leave them there."""
    module = deepcopy(mini.module)
    generator = torch.Generator().manual_seed(1)
    for weight in module.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if kind == "multiplied":
            weight.data *= 1 + 0.05 * noise
        elif kind == "rounded":
            weight.data = weight.data.to(torch.float8_e4m3fn).float()
        else:
            weight.data += 0.05 * weight.std() * noise
    said, result = said_of(mini, module, outputs=0)
    numbers = result.scalars
    assert "Less than random" not in said
    assert "outputs" not in result.tables
    if kind == "added":
        assert "Not distinguishable from matched random changes" in said
    else:
        assert numbers["kl_of_compared_tokens"] < numbers["null_low"], "control: less than at random places"
        assert numbers["kl_of_compared_tokens"] >= numbers["signs_low"]
        assert "less than random changes elsewhere" in said


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("component", "place"),
    [("attn", "attn_out"), ("mlp", "mlp_out"), ("values of a head", "z"), ("output of a head", "z")],
)
def test_the_output_that_changed_carries_all_of_the_kl(mini, component, place):
    module = deepcopy(mini.module)
    block = module.transformer.h[2]
    width = mini.d_model // module.config.n_head
    weight = {"attn": block.attn.c_proj.weight, "mlp": block.mlp.c_proj.weight}.get(component)
    if component == "output of a head":
        block.attn.c_proj.weight.data[width : 2 * width] = 0
    elif component == "values of a head":
        block.attn.c_attn.weight.data[:, 2 * mini.d_model + width : 2 * mini.d_model + 2 * width] = 0  # its values
    else:
        weight.data *= 0.3
    said, result = said_of(mini, module)
    table = result.tables["outputs"].set_index(["output", "layer"])
    first = table.loc[[(place, 2)]].iloc[0]
    assert first["restoring_effect"] == pytest.approx(1, abs=1e-3)
    assert first["transplanting_effect"] == pytest.approx(1, abs=1e-3)
    assert first["mean_effect_low"] <= first["mean_effect"] <= first["mean_effect_high"]
    assert (
        table[["mean_effect"]]
        .drop(index=[("attn_out", 2), ("mlp_out", 2), ("z", 2)], errors="ignore")
        .lt(0.99)
        .all()
        .all()
    )
    named = {"attn_out": "attention 2: 100 %", "mlp_out": "MLP 2: 100 %", "z": "head 2.1: 100 %"}[place]
    assert named in said
    assert "The outputs were chosen by their transplanting effect on the first 128 tokens. An output also" in said
    assert "one head, of all " in said, "an attention of few heads has all of them exchanged"


@pytest.mark.ci_slow
def test_no_output_is_named_where_a_model_has_no_such_sites(checkpoints):
    mamba = load_model(checkpoints["mamba"])
    batches, _ = zip(*compare_batches(mamba, mamba, ROWS, 8), strict=True)
    assert exchange_outputs(mamba, mamba, batches, 4) == {}


def test_forks_by_another_recipe_tell_no_part_apart():
    """Another rate or batch size moves all parts by another factor; one part beside them is still found."""
    flagged = 0
    for seed in range(20):
        changed, *forks = forks_of_noise(20, seed, parts=12, width=12)
        generator = torch.Generator().manual_seed(seed)
        factors = 1.5 + 0.1 * torch.randn(12, generator=generator)
        recipe = [change(move.weights.view(12, 12) * factor) for move, factor in zip(changed, factors, strict=True)]
        beyond, p = beyond_forks(recipe, forks)
        flagged += p <= 0.05 and bool(beyond.max() >= LEAST_Z_NAMED)
        recipe[7] = change(recipe[7].weights.view(12, 12) * 3)
        beyond, p = beyond_forks(recipe, forks)
        assert beyond.argmax() == 7
        assert p <= 0.05
        assert beyond[7] >= LEAST_Z_NAMED
    assert flagged <= 4


def test_norms_and_embeddings_are_not_compared_with_forks():
    model = tiny.frozen()
    compared = comparable_with_forks(model, parts_of(model))
    assert {part.component for part in compared} == {"attention", "MLP"}
    assert len(compared) == 2 * model.n_layers


def test_rows_that_no_model_can_read_are_refused_at_once(cli):
    error = cli("analyze.py", "measure=diff", "model=gpt2-mini", "model@target=gpt2-mini-s1", "data.context=999").error
    assert "data.context=999: gpt2-mini reads at most 64 tokens" in error


@pytest.mark.parametrize("family", ["native", "gpt2", "llama"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_part_of_a_model_of_another_dtype_computes_in_that_dtype(families, family, dtype):
    """States are cast where they enter it: a part whose weights were cast would be the model's own again."""
    model = families[family]
    module = deepcopy(model.module)
    tiny.jiggled(module, 0.05)
    other = variant(model, module.to(dtype), "other")
    before = model.full(TOKENS)
    tolerance = TOLERANCE[dtype] if dtype != torch.float64 else 1e-5
    with contextlib.ExitStack() as parts:
        for part in parts_of(model):
            parts.enter_context(exchanged(model, other, part))
        mixed = model.full(TOKENS)
    expected = other.full(TOKENS)
    assert relative_error(mixed.double(), expected.double()) < tolerance
    assert relative_error(mixed.double(), before.double()) > tolerance, "control"
    assert torch.equal(model.full(TOKENS), before)
    assert torch.equal(other.full(TOKENS), expected)


@pytest.mark.ci_slow
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_cast_copy_in_memory_is_a_change_whichever_is_the_base(is_reversed):
    model = load_model("gpt2-mini")
    module = tiny.jiggled(deepcopy(model.module), 1e-3)
    both = [(module, model.tokenizer), (deepcopy(module).bfloat16(), model.tokenizer)]
    base, changed = reversed(both) if is_reversed else both
    few = {"tokens": 512, "tokens_per_part": 128, "outputs": 0, "taught": False}
    result = thinkalike.diff(base, changed, texts="grammar", **few)
    assert result.scalars["kl"] > 0
    assert (result.table["relative_weight_change"] > 0).all()
    has_null = "null_low" in result.scalars
    assert has_null != is_reversed, "weights of bfloat16 hold no change as small as that"


@pytest.mark.ci_slow
def test_shares_of_a_kl_that_is_rounding_are_not_told():
    """Adding a constant to the stream changes no prediction, as each LayerNorm removes it."""
    model = load_model("neox-4l-mini")
    shifted = deepcopy(model.module)
    with torch.no_grad():
        shifted.gpt_neox.layers[0].mlp.dense_4h_to_h.bias.add_(0.2)
    result = thinkalike.diff(
        model,
        load_model(shifted, model.tokenizer, "shifted"),
        texts="grammar",
        tokens=512,
        tokens_per_part=128,
        taught=False,
    )
    assert result.scalars["kl"] < kl_of_rounding()
    changed = result.details.query("relative_weight_change > 0")
    assert changed["restoring_effect"].isna().all()
    said = " ".join(str(result).split())
    assert "1 of 15 modules changed" in said
    assert "Share of the KL" not in said
    assert "outputs?" not in said


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ([("MLP", 2)], "MLP 2"),
        ([("embedding", -1), ("MLP", 2), ("MLP", 3)], "embedding and MLP 2 to 3"),
        (
            [("norms", 4), *(("attention", n) for n in (4, 5, 6)), ("MLP", 4), ("MLP", 9)],
            "norms 4, attention 4 to 6 and MLP 4, 9",
        ),
    ],
)
def test_modules_are_listed_in_words(modules, said):
    rows = [pd.Series({"component": component, "layer": layer}) for component, layer in modules]
    assert module_names(rows) == said
