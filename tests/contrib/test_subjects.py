"""Recordings as subjects: noise ceilings, random effects and bootstraps by rsatoolbox and simulations, and jobs."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from safetensors.torch import save_file

import thinkalike
import tiny
from conftest import composed, every_second, results_in
from measure_tester import THEIRS, every
from thinkalike.contrib.subjects.mlem import group_tables
from thinkalike.contrib.subjects.model_scores import model_scores
from thinkalike.contrib.subjects.noise_ceiling import noise_ceiling
from thinkalike.contrib.subjects.random_effects import random_effects
from thinkalike.contrib.subjects.resampling import Draws, draw_resamples, dual_variance, two_factor
from thinkalike.data.recordings import mean_of_runs, read_recording
from thinkalike.errors import DataError
from thinkalike.measures import compare, crossnobis, distance_vectors
from thinkalike.measures.changes import two_sided
from thinkalike.states.stimuli import StimulusStates

N, S = 10, 5
P = N * (N - 1) // 2


def drawn(models=3, subjects=S, noise=1.0):
    """Distances of models and of subjects; the first model is what all subjects share."""
    shared = torch.rand(P, dtype=torch.float64) + 0.2
    others = torch.rand(models - 1, P, dtype=torch.float64) + 0.2
    return torch.cat([shared[None], others]), shared + noise * (torch.rand(subjects, P, dtype=torch.float64) - 0.5)


@every
def test_noise_ceilings_are_rsatoolboxs(comparator, toolbox):
    from rsatoolbox.inference import boot_noise_ceiling, cv_noise_ceiling
    from rsatoolbox.inference.crossvalsets import sets_leave_one_out_rdm

    _, subjects = drawn()
    rdms, found = toolbox.rdm.RDMs(subjects.numpy()), noise_ceiling(subjects, comparator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of averaged ranks
        expected = boot_noise_ceiling(rdms, THEIRS[comparator])
        _, tests, rest = sets_leave_one_out_rdm(rdms)
        crossed = cv_noise_ceiling(rdms, rest, tests, THEIRS[comparator])
    for theirs in (expected, crossed):
        np.testing.assert_allclose([found.lower.mean(), found.upper.mean()], theirs, atol=1e-8)


@every
def test_the_lower_ceiling_does_not_see_the_subject(comparator):
    _, subjects = drawn()
    found = noise_ceiling(subjects, comparator)
    assert (found.lower < found.upper).all()
    changed = subjects.clone()
    changed[0] = torch.rand(P)
    again = noise_ceiling(changed, comparator)
    torch.testing.assert_close(again.without[0], found.without[0])
    assert (again.without[1] != found.without[1]).any(), "control"


def test_random_effects_are_scipys_t():
    values = torch.randn(3, 7, dtype=torch.float64) + 0.3
    found = random_effects(values, level=0.9)
    theirs = scipy.stats.ttest_1samp(values.numpy(), 0, axis=1)
    low, high = theirs.confidence_interval(0.9)
    np.testing.assert_allclose([found.value, found.low, found.high], [values.mean(1), low, high], rtol=1e-9)
    errors = values.std(1) / 7**0.5
    np.testing.assert_allclose(two_sided(values.mean(1), errors, 6), theirs.pvalue, rtol=1e-9)
    assert random_effects(values[:, :1]).low.tolist() == [-np.inf] * 3, "of one there is no interval"


def test_without_spread_p_is_1_at_difference_0_and_else_0():
    assert two_sided(torch.tensor([0.0, 1.0, -1.0]), torch.zeros(3), 4).tolist() == [1, 0, 0]


@pytest.mark.parametrize("comparator", ["cosine", "spearman", "corr_cov"])
def test_the_two_factor_bootstrap_is_rsatoolboxs(comparator, toolbox, monkeypatch):
    """With its own draws: scores of every resample, and the corrected variances of models and of their differences."""
    from rsatoolbox.inference import evaluate
    from rsatoolbox.model import ModelFixed

    models, subjects = drawn()
    taken = []

    def noted(*words, sample=evaluate.bootstrap_sample, **more):
        found = sample(*words, **more)
        taken.append(found[1:])
        return found

    monkeypatch.setattr(evaluate, "bootstrap_sample", noted)
    monkeypatch.setattr(evaluate.tqdm, "trange", range)
    np.random.seed(0)
    fixed = [ModelFixed(str(number), each) for number, each in enumerate(models.numpy())]
    theirs = evaluate.eval_dual_bootstrap(fixed, toolbox.rdm.RDMs(subjects.numpy()), THEIRS[comparator], N=25)
    counts = [
        torch.tensor(np.array([np.bincount(each[side], minlength=m) for each in taken])).double()
        for side, m in ((0, S), (1, N))
    ]
    draws = Draws(*counts, N)
    values, replicates = compare(models, subjects, comparator), compare(models, subjects, comparator, counts[1])
    expected = torch.from_numpy(theirs.evaluations[:, :, 0, 0])
    weights = counts[0] / S
    torch.testing.assert_close(torch.einsum("rms,rs->rm", replicates, weights), expected[:, :, 0], atol=1e-8, rtol=0)
    torch.testing.assert_close(torch.einsum("ms,rs->rm", values, weights), expected[:, :, 1], atol=1e-8, rtol=0)
    torch.testing.assert_close(replicates.mean(2), expected[:, :, 2], atol=1e-8, rtol=0)
    found = two_factor(values, replicates, draws)
    np.testing.assert_allclose(found.error.square(), theirs.model_var, atol=1e-8)
    pairs = [(0, 1), (0, 2), (1, 2)]
    difference = two_factor(
        *(torch.stack([each[..., a, :] - each[..., b, :] for a, b in pairs], -2) for each in (values, replicates)),
        draws,
    )
    np.testing.assert_allclose(difference.error.square(), theirs.diff_var, atol=1e-8)
    assert theirs.dof == min(N, S) - 1


def test_variances_are_corrected_within_bounds():
    """Means of subjects plus stimuli plus noise, whose true variance is known."""
    s, n, found, crude = 8, 12, [], []
    parts = (0.5, 0.7, 1.0)
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        scores = sum(
            size * torch.randn(*shape, generator=generator, dtype=torch.float64)
            for size, shape in zip(parts, ((s, 1), (1, n), (s, n)), strict=True)
        )
        draws = draw_resamples(s, n, 200, seed)
        replicates = draws.stimuli / n @ scores.T
        found.append(float(two_factor(scores.mean(1), replicates, draws).error.square()))
        crude.append(float(torch.einsum("rs,rs->r", replicates, draws.subjects / s).var()))
    truth = parts[0] ** 2 / s + parts[1] ** 2 / n + parts[2] ** 2 / (s * n)
    assert abs(np.mean(found) / truth - 1) < 0.1
    assert np.mean(crude) > 1.08 * truth, "control: both at once count noise three times"
    v = torch.tensor([1.0, 5.0]), torch.tensor([2.0, 1.0]), torch.tensor([0.5, 1.0])
    assert dual_variance(*v, s, n).tolist() == pytest.approx([1.0, s / (s - 1)]), "bounds"


def test_a_better_model_is_found_and_equal_ones_are_not():
    models, subjects = drawn(2, 8, noise=0.5)
    found = model_scores(models, subjects, resamples=100)
    difference = two_factor(*found.of(0).minus(found.of(1)), found.draws)
    assert difference.estimate.low > 0
    assert difference.p < 0.02
    same = model_scores(torch.stack([subjects.mean(0), subjects.mean(0)]), subjects, resamples=20)
    none = two_factor(*same.of(0).minus(same.of(1)), same.draws)
    assert abs(none.estimate.value) < 1e-15
    assert none.p == 1


def test_scores_and_ceiling_are_those_of_copied_stimuli(device):
    models, subjects = drawn()
    found = model_scores(models.to(device), subjects.to(device), "corr", resamples=7, seed=3)
    torch.testing.assert_close(found.values, compare(models, subjects, "corr"))
    torch.testing.assert_close(found.replicates, compare(models, subjects, "corr", found.draws.stimuli))
    ceiling = noise_ceiling(subjects, "corr")
    expected = compare(ceiling.without, subjects, "corr", found.draws.stimuli).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.ceiling_scores().replicates, expected)
    torch.testing.assert_close(found.ceiling_scores().values, ceiling.lower)


def test_without_resamples_there_is_no_interval_over_stimuli():
    found = model_scores(*drawn(), resamples=0)
    assert found.replicates.shape == (0, 3, S)
    assert random_effects(found.best([0, 1])[0].minus(found.ceiling_scores()).values).low.isfinite()
    assert two_factor(*found.of(0), found.draws).error.isnan()


def test_the_best_is_chosen_on_other_subjects():
    found = model_scores(torch.rand(3, P), torch.rand(3, P), resamples=2)
    values = torch.tensor([[0.9, 0.1, 0.1], [0.0, 0.6, 0.0], [0.2, 0.2, 0.2]], dtype=torch.float64)
    planted = type(found)(values, values.expand(2, 3, 3), found.ceiling, found.lower_of_resamples, found.draws)
    scored, chosen = planted.best([0, 1, 2])
    assert chosen.tolist() == [1, 0, 0]
    assert scored.values.tolist() == [0.0, 0.1, 0.1]
    assert scored.replicates.tolist() == [[0.0, 0.1, 0.1]] * 2
    assert planted.best([1, 2])[1].tolist() == [1, 2, 1]


def test_stimuli_of_a_group_are_drawn_together():
    groups = torch.tensor([5, 5, 2, 2, 9, 9, 9, 1, 1, 1])
    found = draw_resamples(3, N, 50, seed=1, groups=groups)
    assert found.units == 4
    for group in groups.unique():
        inside = found.stimuli[:, groups == group]
        assert (inside == inside[:, :1]).all()
    assert ((found.stimuli > 0)[:, [0, 2, 4, 7]].sum(1) >= 3).all()
    assert (found.subjects.sum(1) == 3).all()
    assert torch.equal(draw_resamples(3, N, 50, seed=1, groups=groups).stimuli, found.stimuli)
    assert (draw_resamples(3, N, 50, seed=1).stimuli.sum(1) == N).all()


def test_empty_resamples_are_dropped_and_too_many_refused():
    one = torch.zeros(1, P, dtype=torch.float64)
    one[0, :3] = 1  # stimulus 0 and 1, 2, 3
    subjects = drawn()[1]
    found = model_scores(one, subjects, resamples=40)
    assert 20 <= len(found.replicates) == len(found.draws.subjects) < 40


THREE = torch.tensor([[1.0, 2, 3], [3, 2, 1], [2, 1, 3]])
REFUSED = {
    "one subject": lambda: noise_ceiling(torch.rand(1, P), "corr"),
    "a constant subject": lambda: noise_ceiling(torch.ones(2, P), "corr"),
    "a constant mean": lambda: noise_ceiling(THREE[:2], "tau_a"),
    "a constant mean of the others": lambda: noise_ceiling(THREE, "spearman"),
    "two groups": lambda: draw_resamples(3, 4, 5, groups=torch.tensor([0, 0, 1, 1])),
    "resamples that are constant": lambda: model_scores(torch.eye(P)[:1], drawn()[1], resamples=40),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_ceiling_or_resamples_is_refused(case):
    with pytest.raises(ValueError):
        REFUSED[case]()


COUNT, SUBJECTS, MEASURE = 24, 4, "rsa"
IDS = [f"w{number}" for number in range(COUNT)]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Words of 24 texts, with two features."""
    rows = [
        f"{name},{'ab'[n % 2]}{'cd'[n // 2 % 2]} {chr(97 + n)},{['red', 'green', 'blue'][n % 3]},{n % 4}"
        for n, name in enumerate(IDS)
    ]
    path = tmp_path_factory.mktemp("subjects") / "words.csv"
    path.write_text("\n".join(["id,text,colour,size", *rows]) + "\n")
    return path


def write(path, layers, runs=1, ids=IDS):
    """Write a recording, with rows in an order of its own; layers of several runs have a first axis of them."""
    order = np.random.default_rng(len(path.name)).permutation(runs * len(ids))
    rows = {name: np.asarray(layer).reshape(runs * len(ids), -1)[order] for name, layer in layers.items()}
    named = {"runs": np.repeat(np.arange(runs), len(ids))[order]} if runs > 1 else {}
    np.savez(path, **rows, ids=np.tile(ids, runs)[order], **named)
    return path


@pytest.fixture
def recordings(tmp_path, states, stimuli):
    """Subjects: V1 is a layer of the model under noise, and in IT there is nothing but colour."""
    colour = np.eye(3)[stimuli.codes().table[:, 0].long()]
    paths = []
    for number in range(SUBJECTS):
        draw = np.random.default_rng(number)
        middle = states[1].double().numpy()
        layers = {
            "V1": middle + 0.5 * middle.std() * draw.normal(size=middle.shape),
            "IT": colour + 0.2 * draw.normal(size=(COUNT, 3)),
        }
        paths.append(write(tmp_path / f"s{number + 1}.npz", layers))
    return paths


def given(paths):
    return f"activations=[{','.join(map(str, paths))}]"


def local(path, side="model", part="model"):
    return [f"{side}=local", f"{part}.path={path}"]


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_runs_find_their_stimuli_and_states_are_their_mean(ending, tmp_path, stimuli):
    runs = torch.randn(3, COUNT, 2, dtype=torch.float64)
    order = torch.randperm(3 * COUNT)
    rows, names = runs.reshape(-1, 2)[order], [f"session {n}" for n in (1, 2, 10) for _ in IDS]
    ids, names = (np.array(each)[order] for each in (IDS * 3, names))
    path = tmp_path / f"x{ending}"
    if ending == ".npz":
        np.savez(path, V1=rows, ids=ids, runs=names)
    else:
        save_file({"V1": rows}, path, {"ids": json.dumps(ids.tolist()), "runs": json.dumps(names.tolist())})
    found = read_recording(path, stimuli)
    assert found.runs == ["session 1", "session 2", "session 10"]
    torch.testing.assert_close(found.layers["V1"], runs)
    torch.testing.assert_close(mean_of_runs(read_recording(path, stimuli).layers["V1"]), runs.mean(0))


def test_layers_of_one_array_have_runs_too(tmp_path, stimuli):
    whole = torch.randn(2, 3, COUNT, 4, dtype=torch.float64)
    np.savez(tmp_path / "x.npz", states=whole.reshape(2, -1, 4), ids=IDS * 3, runs=np.repeat([1, 2, 3], COUNT))
    found = read_recording(tmp_path / "x.npz", stimuli)
    torch.testing.assert_close(torch.stack([found.layers["0"], found.layers["1"]]), whole)


@pytest.mark.ci_slow
@pytest.mark.drawn
def test_the_subjects_own_layer_is_best_and_at_the_ceiling(measured, recordings, states, checkpoints):
    done = measured(given(recordings), *local(checkpoints["gpt2"]), "measure.resamples=60")
    result = done.result
    table = result.table.set_index(["recorded", "layer"])
    assert len(table) == 2 * tiny.LAYERS
    v1 = table.loc["V1"]
    assert v1["value"].idxmax() == 1
    assert v1["lower"][1] - 0.05 < v1["value"][1]
    assert (v1["both_low"] <= v1["value"]).all()
    assert table.loc["IT"]["value"].max() < 0.5 * table.loc["IT"]["lower"].max(), "control: colour is in no layer"
    bests = result.tables["models"].set_index("recorded")
    assert str(bests["layers"]["V1"]) == "1"
    assert set(result.tables["comparisons"]["other"]) == {"noise ceiling"}
    assert {path.stem for path in result.figures} == {"subjects"}
    assert result.provenance["subjects"] == ["s1", "s2", "s3", "s4"]
    assert "V1: noise ceiling" in done.stdout
    assert "gpt2, best layer 1:" in done.stdout
    assert "gpt2 minus the ceiling's lower end: " in done.stdout


def test_numbers_of_subjects_are_those_of_the_measures(measured, recordings, states, stimuli, checkpoints):
    words = ["measure.comparator=corr_cov", "measure.distance=correlation", "measure.resamples=0"]
    result = measured(given(recordings), *local(checkpoints["gpt2"]), *words).result
    inside = [mean_of_runs(read_recording(path, stimuli).layers["V1"]) for path in recordings]
    subjects, models = (distance_vectors(each, "correlation") for each in (inside, states))
    values = compare(models, subjects, "corr_cov")
    each = result.tables["by_subject"]
    found = each[each["recorded"] == "V1"]["value"].to_numpy().reshape(tiny.LAYERS, SUBJECTS)
    np.testing.assert_allclose(found, values, atol=1e-12)
    table = result.table[result.table["recorded"] == "V1"]
    expected = np.stack([np.asarray(part) for part in random_effects(values)])
    np.testing.assert_allclose(table[["value", "low", "high"]].to_numpy().T, expected, atol=1e-12)
    assert "both_low" not in table
    ceiling, rows = noise_ceiling(subjects, "corr_cov"), result.tables["ceilings"].query("recorded == 'V1'")
    np.testing.assert_allclose(rows[["lower", "upper"]].to_numpy().T, [ceiling.lower, ceiling.upper], atol=1e-12)
    assert list(rows["subject"]) == ["s1", "s2", "s3", "s4"]


@pytest.mark.ci_slow
def test_crossnobis_of_runs_finds_what_noise_hides(measured, states, stimuli, tmp_path, checkpoints):
    draw, middle, runs = np.random.default_rng(0), states[1].double().numpy(), {}
    for name in ("a", "b", "c"):
        runs[name] = middle + middle.std() * draw.normal(size=(3, *middle.shape))
        write(tmp_path / f"{name}.npz", {"V1": runs[name]}, 3)
    paths = [tmp_path / f"{name}.npz" for name in runs]
    words = [given(paths), *local(checkpoints["gpt2"]), "measure.comparator=corr", "measure.resamples=0"]
    found = measured(*words, "measure.distance=crossnobis").result
    subjects = torch.stack([crossnobis(torch.from_numpy(each))[np.triu_indices(COUNT, 1)] for each in runs.values()])
    values = compare(distance_vectors(states), subjects, "corr")
    np.testing.assert_allclose(found.table["value"], values.mean(1), atol=1e-10)
    assert found.table["value"].idxmax() == 1
    alone = measured(f"activations={paths[0]}", "measure.distance=crossnobis", "measure.comparator=corr")
    assert list(alone.result.table["value"]) == [pytest.approx(1)]


@pytest.mark.ci_slow
def test_two_sides_are_compared_by_any_comparator(measured, recordings, stimuli):
    comparator = "cosine_cov"
    done = measured(given(recordings[:2]), f"measure.comparator={comparator}", "measure.permutations=3")
    layers = [layer.mean(0) for path in recordings[:2] for layer in read_recording(path, stimuli).layers.values()]
    vectors = distance_vectors(layers)
    values = done.result.details["value"]
    np.testing.assert_allclose(values, compare(vectors, vectors, comparator).flatten(), atol=1e-12)
    assert "p" in done.result.table
    assert "Most similar" in done.stdout


@pytest.mark.ci_slow
def test_profiles_of_subjects_have_a_group(measured, stimuli, tmp_path):
    """In IT there is nothing but colour, and in V1 little of size under much noise."""
    colour, size = (np.eye(4)[stimuli.codes().table[:, column].long()] for column in (0, 1))
    for number in range(SUBJECTS):
        noise = np.random.default_rng(number).normal(size=(2, COUNT, 4))
        write(tmp_path / f"s{number}.npz", {"IT": colour + 0.2 * noise[0], "V1": size + 0.7 * noise[1]})
    done = measured(given(sorted(tmp_path.glob("s?.npz"))), "measure.permutations=2", "measure.folds=3", measure="mlem")
    result = done.result
    group, scores = result.tables["group"], result.tables["group_scores"].set_index("layer")
    table = result.table
    for (layer, feature), rows in table.groupby(["layer", "feature"]):
        expected = [*map(float, random_effects(torch.tensor(rows["importance"].to_numpy())))]
        row = group[(group["layer"] == layer) & (group["feature"] == feature)].iloc[0]
        np.testing.assert_allclose(list(row[["importance", "low", "high"]]), expected, atol=1e-9)
    it = group[group["layer"] == "IT"].set_index("feature")
    assert it["low"]["colour"] > 0.3
    assert abs(it["importance"]["size"]) < 0.1
    assert scores["score"]["IT"] > 0.8 * scores["lower"]["IT"]
    assert scores["lower"]["V1"] < 0.5 * scores["lower"]["IT"], "subjects differ"
    assert (scores["lower"] < scores["upper"]).all()
    assert "4 participants" in done.stdout
    assert "noise ceiling" in done.stdout


@pytest.mark.ci_slow
def test_the_mean_of_subjects_is_not_said_to_be_tested():
    """Each subject has p-values of its own, and their mean has none."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 2, 40)
    table = pd.DataFrame({"text": [f"text {row}" for row in range(40)], "kind": [f"k{kind}" for kind in kinds]})
    subjects = [rng.normal(size=(40, 4)) + 9 * kinds[:, None] for _ in range(3)]
    more = {"references": 0, "alphas": [1.0], "permutations": 1, "folds": 2, "null": 2}
    result = thinkalike.mlem(subjects, stimuli=table, **more)
    said = " ".join(str(result).split())
    assert "tested in each subject alone, and not for their mean" in said
    assert "nan" not in said
    assert result.details["p_corrected"].notna().all()
    figure, _ = result.instrument.plot(result)
    assert "intervals over 3 participants" in " ".join(figure.get_suptitle().split())


def test_subjects_whose_distances_cancel_have_no_ceiling(stimuli):
    """Points 0, 1, 3 and 0, 3, 1: what is near in one is far in the other."""
    config = composed("measure=mlem", "recipe=paper", entry="analyze")
    few, sides = stimuli.take([0, 1, 2]), []
    for name, places in (("s1", [0.0, 1, 3]), ("s2", [0.0, 3, 1])):
        sides.append(StimulusStates(name, ["V1"], [torch.tensor(places)[:, None]], {}))
    profiles = pd.DataFrame({"model": ["s1", "s2"], "layer": "V1", "feature": "size", "importance": [0.1, 0.2]})
    scores = pd.DataFrame({"model": ["s1", "s2"], "layer": "V1", "score": [0.1, 0.2]})
    with pytest.raises(DataError, match="the noise ceiling of held-out stimuli: the distances of the mean of all"):
        group_tables(config, few, sides, profiles, scores)


RECORDED, CROSSNOBIS = "activations=[S1,S2,S3]", "measure.distance=crossnobis"
BAD = {
    "a copy of a subject": (["activations=[S1,S2,COPY]"], "copy and s1 hold the same; give each subject once"),
    "other layers": (["activations=[S1,S2,OTHER]"], "other and s1 differ in the layers IT"),
    "constant distances": (["activations=[S1,S2,FLAT]"], "the distances of flat V1 are constant"),
    "crossnobis of one run": ([RECORDED, CROSSNOBIS], "s1.npz has one run, and measure.distance=crossnobis needs two"),
    "crossnobis of a model": ([CROSSNOBIS], "needs runs of a recording; give activations=FILE"),
    "noise without an inverse": (["activations=[STILL,S1,S2]", CROSSNOBIS], "choose measure.noise=none"),
    "a comparator of other distances": (["measure.comparator=corr_cov", "measure.distance=manhattan"], "manhattan"),
}


@pytest.mark.parametrize("case", every_second(BAD))
def test_what_cannot_be_done_with_subjects_is_one_line(case, measured, recordings, stimuli, tmp_path):
    words, message = BAD[case]
    first = {name: layer[0].numpy() for name, layer in read_recording(recordings[0], stimuli).layers.items()}
    paths = {f"S{number + 1}": path for number, path in enumerate(recordings)}
    paths["COPY"] = tmp_path / "copy.npz"
    paths["COPY"].write_bytes(recordings[0].read_bytes())
    paths["OTHER"] = write(tmp_path / "other.npz", {"V1": first["V1"]})
    paths["FLAT"] = write(tmp_path / "flat.npz", {**first, "V1": np.ones((COUNT, 2))})
    paths["STILL"] = write(tmp_path / "still.npz", {name: np.stack([layer, layer]) for name, layer in first.items()}, 2)
    for name, path in paths.items():
        words = [word.replace(f"[{name}", f"[{path}").replace(f",{name}", f",{path}") for word in words]
    assert message in measured(*words).error
    assert not results_in(tmp_path / "results")
