"""All that computes runs on a GPU that is not there, mixes no devices, and waits only where that is listed.

A wait in a loop over batches, layers or layer pairs has its reason in `REASONS`; those of the end of a job need none.
"""

from functools import partial
from itertools import product

import pandas as pd
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError
from torch.utils._python_dispatch import _disable_current_modes

import tiny
from conftest import with_ci_slow
from counted_work import KINDS, of_outputs
from fake_device import FakeDevice, move
from thinkalike import measures
from thinkalike.config import DataConfig, instrument, measure_entry, measure_schema
from thinkalike.data.rows import Corpus
from thinkalike.data.stimuli import Stimuli
from thinkalike.evaluation.changes import compare_batches, perturbed
from thinkalike.evaluation.exchanges import exchange_parts
from thinkalike.evaluation.forks import part_moves
from thinkalike.instruments.ruler.words import r2_of_layers
from thinkalike.measures.mlem.differentiable import DifferentiableMLEM
from thinkalike.measures.ridge import Predictor
from thinkalike.models.parts import changed_parts, parts_of
from thinkalike.states.batches import ModelRuns, array_batches, text_batches
from thinkalike.states.pieces import Pieces
from thinkalike.states.stimuli import stimulus_states
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.stitching import STITCH_LOSSES, Microbatch, StitchTraining, mean_losses
from two_gpus import GPU, OTHER, ROWS, made, rows, waits

REASONS = {
    "how many rows each part of the documents has, which slices need: once a batch": "leave_out.sizes_of_parts",
    "a batch is refused before it is added, so its flaws are looked at: once a batch, or a layer": """
        centred_rows.refuse_flaws kernel_alignment._refuse_flat outputs._refuse_flawed neural.of of_layers.u_centred
        neural._refuse_size comparators._refuse_constant of_layers.prepare neighbours.directions
        moments.is_constant ridge._of_unit_size""",
    "its number is the next one where the caller gives none, as jobs do": "accumulator.next_number",
    "a few numbers go to the GPU or come from it: once a batch, or a weight": """
        outputs.compare_leaving_out_parts accumulator.add ridge.of ridge._fits
        forks.part_moves changes.compare_batches
        forks._largest_squared_singular_value changes.token_distances changes.kl
        frozen._run batches.pool features.differences
        changes.signed_permutation changes._signs_along
        parts.weights_changed batches._batch batches._residuals batches.residuals_of batches.select
        batches.run word_states.states_of_words word_states._states_at stimuli.states_of_stimuli
        massive_rows.massive""",
    "pairs of stimuli closer than rounding, and copies, are found by value: a shape": """
        neural.squared_distances neural.squared""",
    "how many levels, components, tokens or directions there are is a shape": """
        ranks.ranks_of_levels singular_vectors.prepare row_groups.without_means row_groups._position_effects
        ridge._fold_states features._are_different""",
    "how many rows have ties among their neighbours is a shape": "neighbours.nearest_rows",
    "an assignment is solved on the host": "unit_matching.transport_plan",
    "states of stimuli are kept on the host: once a batch": "stimuli.stimulus_states",
    "penalties are those of a CPU to the bit, and go to the GPU: once a fit": "ridge_penalty.penalty_of",
    "at the end of a fit, once a layer pair": """
        encoding_model._scale_ends differentiable.pearson moments.of""",
}
TABLE = pd.DataFrame(torch.randint(3, (ROWS, 3), generator=torch.Generator().manual_seed(0)).numpy(), columns=[*"abc"])
IN_LOOPS = {place for places in REASONS.values() for place in places.split()}


def states(layers, seed, dtype=torch.float32, width=12):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, width, generator=generator).to(dtype).to(GPU) for _ in range(layers)]


def compared(kind, batches, layers, dtype=torch.float32, **chosen):
    measure = measure_schema(kind)()
    layers = 1 if of_outputs(kind) else layers
    for name, choice in chosen.items():
        setattr(measure, name, choice)
    metric = instrument(measure_entry(kind)).metric(measure, layers, layers).to(GPU)
    for number in range(batches):
        labels = {"documents": torch.arange(ROWS) // 6 + 100 * number}
        labels |= {"groups": torch.arange(ROWS) % 5} if chosen.get("conditional_on", "none") != "none" else {}
        labels = {name: each.to(GPU) for name, each in labels.items()}
        metric.update(states(layers, 2 * number, dtype), states(layers, 2 * number + 1, dtype), **labels)
    return metric.compute()


def explained(_, layers, dtype=torch.float32):
    model = measures.MLEM(alpha=1.0).fit(TABLE, states(layers, 0, dtype))
    measures.feature_importance(model, TABLE, states(1, 0, dtype), permutations=2)


def learnt(steps, _, dtype=torch.float32):
    model, layer = measures.MLEM(alpha=1.0), states(1, 0, dtype)[0]
    features = model.fit(TABLE, layer).encoder_.encode_values(model.read(TABLE, layer).values)
    for loss, _ in product(("squared_error", "pearson", "spearman"), range(steps)):
        learning = move(DifferentiableMLEM(3, loss=loss), GPU)
        learning.loss(features, layer.requires_grad_()).backward()


def distances(_, layers, dtype=torch.float32):
    sides, groups = [states(layers, seed, dtype) for seed in range(2)], torch.arange(ROWS) // 3
    measures.rsa_estimate(*sides, folds=3, groups=groups)
    measures.mantel(*sides, permutations=2, groups=groups)


def ruled(_, layers, dtype=torch.float32):
    documents = torch.arange(ROWS) // 4
    r2_of_layers(*([Predictor(each, documents) for each in states(layers, seed, dtype)] for seed in range(2)))


def iterated(batches, layers, dtype=torch.float32):
    sides = [states(layers, seed, dtype) for seed in range(2)]
    found = array_batches(sides, torch.arange(ROWS) // 4, rows_per_batch=ROWS // batches)
    assert all(list(found.pool(number)) for number in range(found.total))


def stitched(steps, pairs, loss="cross_entropy", size=(12, 3)):
    """The source is on another GPU."""
    with _disable_current_modes():
        config = StitchConfig(steps=6, warmup=1, tokens_per_step=128, loss=loss)
        module = StitchTraining(tiny.frozen(1), tiny.frozen(2), [(0, 0), (1, 2), (2, 1)][:pairs], config)
    move(module, GPU).models = made(1, OTHER), made(2, GPU)
    module.fits = tuple(fit._replace(reads=module.models[0]) for fit in module.fits)
    optimizer, tokens = module.configure_optimizers()["optimizer"], rows(0).tokens.to(GPU)
    for _ in range(steps):
        mean_losses(module.losses, module._weights, tokens, Microbatch(*size)).sum().backward()
        module.configure_gradient_clipping(optimizer)
        optimizer.step()


def changed(batches, parts):
    base, other = made(1, GPU), made(2, GPU)
    batches = [found for number in range(batches) for found, _ in compare_batches(base, other, rows(number), 6)]
    exchange_parts(base, other, changed_parts(base, other)[:parts], batches, 2)
    part_moves(base, other, parts_of(base)[:parts])
    for number in range(parts):
        with perturbed(base, other, parts_of(base), number) as model:
            [own.kl(model, 0, own.base) for own in batches]


def read(batches, layers, level):
    measure, runs, models = measure_schema("cka")(), ModelRuns(), [made(1, OTHER), made(2, GPU)]
    measure.batches, measure.unit, measure.conditional_on, texts = (
        batches,
        level,
        "token_position",
        ["ab ba b"] * 60 * batches,
    )
    measure.tokens_per_batch, few = 96 if level == "token" else 12, texts[: 4 * batches]
    words = Pieces(few, [[(0, 2), (3, 5), (6, 7)]] * len(few), [*range(len(few))])
    runs.text = lambda *_: Corpus(rows(0), rows(0), {}) if level == "token" else words
    found = text_batches(models, [range(layers)] * 2, DataConfig(context=32), measure, runs)
    assert all(list(found.pool(number)) for number in range(found.total))
    table = pd.DataFrame({"a": range(len(texts))})
    stimulus_states(models[1], Stimuli(texts, table["a"].to_numpy(), [(0, 2)] * len(texts), texts, table))


STATES = {"mlem": explained, "differentiable": learnt, "rsa": distances, "ruler": ruled, "batches": iterated}
JOBS = {kind: partial(compared, kind) for kind in KINDS} | STATES
MODELS = {f"stitch {loss}": partial(stitched, loss=loss) for loss in STITCH_LOSSES}
MODELS |= {"stitch in microbatches": partial(stitched, size=(7, 1)), "diff": changed}
MODELS |= {level: partial(read, level=level) for level in ("token", "word")}

LIKE_OTHERS = {"jaccard", "second_order_cosine", "svcca", "soft_matching", "disagreement", "jsd", "token_rsa"}
LIKE_OTHERS |= {"distance_correlation", "stitch mse", "stitch penultimate", "stitch alignment"}
"""Jobs that compute in much the same way as others, and are tried with the slow tests alone."""


@pytest.mark.filterwarnings("ignore:features .* differ on much the same pairs", "ignore:CUDA is not available")
@pytest.mark.parametrize("name", with_ci_slow([*JOBS, *MODELS], *(JOBS.keys() | MODELS.keys()) - LIKE_OTHERS))
def test_no_job_mixes_devices_or_waits_in_a_loop(name):
    """More states are of half precision, which are widened first, so that all that runs of others runs of them."""
    job = (JOBS | MODELS)[name]
    few, more = waits(job, 1, 1), waits(job, 2, 2, **({"dtype": torch.bfloat16} if name in JOBS else {}))
    assert {place for place, count in more.items() if count > few[place]} <= IN_LOOPS | {"test"}, more - few


HAVE_NULL = [kind for kind in KINDS if getattr(measure_schema(kind), "has_null", False)]
CHOICES = [(kind, {"null": True, "permutations": 1}) for kind in HAVE_NULL]
CHOICES += [(kind, {"conditional_on": "token", "null": True, "permutations": 1}) for kind in ("cka", "mutual_knn")]


@pytest.mark.parametrize(
    ("kind", "chosen"), with_ci_slow(CHOICES, *(choice for choice in CHOICES if choice[0] not in LIKE_OTHERS))
)
def test_nulls_and_groups_mix_no_devices(kind, chosen):
    assert waits(partial(compared, kind), 1, 1, **chosen)


def test_a_mix_and_a_wait_are_found():
    with FakeDevice() as device:
        x, y, z = torch.ones(3, device=GPU), torch.ones(3), torch.ones(3, device=OTHER)
        for other in (y, z):
            with pytest.raises(FakeTensorDeviceMismatchError):
                x + other
        assert (x * 2).sum() == 6
        assert x.tolist() == [1, 1, 1]
        assert len(x[x > 0]) == 3
        assert device.waits == {"test": 3}
        x.requires_grad_().square().sum().backward()
        assert x.grad.device == (z.to(x.device) * x).device == x.device, "copies between GPUs are no waits"
        assert device.waits == {"test": 3}
