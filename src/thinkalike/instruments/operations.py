"""The operations of each kind of job, from sizes alone: passes of its models as counted, and its own matrix products.

Products take two operations per multiplication. Sorting, norms and elementwise work are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from thinkalike.config import AnalyzeConfig, PairsConfig, SAEConfig, StitchConfig, TrainConfig, pairs_of_layers
from thinkalike.config.schema import pool_tokens
from thinkalike.job.operations import Phase, Shapes, forward_passes

if TYPE_CHECKING:
    from thinkalike.models.shapes import Operations, Shape

Widths = Sequence[int]  # of every layer that is compared
Pairs = Sequence[tuple[int, int]]  # of layers

EIGEN = 9.0  # d³ for eigenvalues and eigenvectors of a symmetric matrix (Golub & Van Loan 2013, section 8.3)
PARTS = 10  # of the documents, without each of which measures of layer pairs are, too
AGAIN = 1 + PARTS * (1 - 1 / PARTS) ** 2  # times n² operations, of all rows and again without each part
AND_SCATTERED = AGAIN + (AGAIN - 1) / 4  # and in every fourth batch without tenths of the rows at random
STRIP = 64  # rows of the Gram matrices that are computed at once, also beyond the diagonal
WORDS = 8  # tokens of a sentence of the grammars, about
PAIR = 40  # tokens of a pair of MNLI, about
PUBLISHED = {"fit": 392_702, "report": 9_815, "challenge": 30_000}  # pairs of MNLI and HANS
LBFGS = 100  # steps, about
REPORTED = 262144  # tokens of the report where the data do not state it
STATISTICS = 2.0**16  # tokens, at most, of closed forms and of the means of tokens
LIKENESS = 2.0**16  # tokens to fit on, and of the report, at most, of the likeness of states
COVARIATES = 768.0  # of the tokens before each, by which a bag of them is described


def both_of(shapes: Shapes) -> tuple[Shape, Shape]:
    """Return source and target; a model without a target is its own."""
    return shapes["model"], shapes.get("target", shapes["model"])


def row_of(config: Any, shapes: Shapes) -> int:
    """Return the tokens of a row of text."""
    return config.data.context or min(shape.context for shape in shapes.values())  # type: ignore[no-any-return]


def of_grams(n: int, source: Widths, target: Widths | None) -> float:
    """Return n (n + 64 + 20) (Σ d + l² + l m + m²): half of every Gram matrix, and products of every two of them.

    The last are also without each of 10 parts of the rows. Where the target is None, a model is compared with itself.
    """
    mine, theirs = len(source), len(target or ())
    compared = mine**2 + mine * theirs + theirs**2
    return float(n * (n + STRIP + 2 * PARTS) * (sum(source) + sum(target or ()) + compared))


def of_neighbours(n: int, source: Widths, target: Widths | None) -> float:
    """Return 2 n² (Σ d + (l + m)²): the similarities of tokens in every layer, and the neighbours that two share."""
    widths = [*source, *(target or ())]
    return of_distances(n, widths) + 2.0 * n * n * len(widths) ** 2


def of_prediction(measure: Any, source: Widths, target: Widths | None) -> float:
    """Return what linear maps of all layer pairs take: their moments, their solutions, and their predictions."""
    sides, n = (source, target or source), measure.tokens_per_batch
    squares = sum(width**2 for side in sides for width in side)
    pairs = sum(sides[0]) * sum(sides[1])
    ways = (sides, sides[::-1])
    solutions = sum(width**3 / 3 + 2 * width**2 * sum(other) for side, other in ways for width in side)
    squares *= readings_of(*sides)
    return float(n * (measure.fit_batches * 2 * (2 * squares + pairs) + measure.batches * 4 * pairs) + solutions)


def readings_of(source: Widths, target: Widths) -> int:
    """Return how often text is read for the maps of all layer pairs."""
    from thinkalike.measures.prediction import pairs_at_once

    return -(-len(source) * len(target) // pairs_at_once(max(source), max(target)))


def bytes_of_prediction(source: Widths, target: Widths) -> float:
    """Return the most bytes that maps take: two of each pair at once, products of its layers, and their factors."""
    from thinkalike.measures.prediction import pairs_at_once

    pairs = min(pairs_at_once(max(source), max(target)), len(source) * len(target))
    rows = min(-(-pairs // len(target)) + 1, len(source))  # pairs go from row to row
    own = rows * source[0] ** 2 + min(pairs, len(target)) * target[0] ** 2
    return 8.0 * 2 * (pairs * source[0] * target[0] + own)


def widths_compared(config: AnalyzeConfig, shapes: Shapes) -> tuple[Widths, Widths]:
    """Return the width of each layer of both models that is compared."""
    measure: Any = config.measure
    counts = zip(both_of(shapes), chosen_layers(config, shapes), strict=True)
    source, target = ([each.width] * (count + measure.embed) for each, count in counts)
    return source, target


def layer_pairs(
    config: AnalyzeConfig,
    shapes: Shapes,
    comparing: Callable[..., float],
    readings: Callable[..., int] = lambda source, target: 1,
) -> list[Phase]:
    """Return the passes of both models over all batches, each of so many readings, and what `comparing` returns."""
    measure: Any = config.measure
    batches = measure.batches + getattr(measure, "fit_batches", 0)
    source, target = widths_compared(config, shapes)
    own = comparing(measure, source, None if config.model == config.target else target)
    tokens = float(batches * measure.tokens_per_batch) * readings(source, target)
    return [*forward_passes(both_of(shapes), tokens, row_of(config, shapes)), Phase("comparing", own)]


def chosen_layers(config: AnalyzeConfig, shapes: Shapes) -> list[int]:
    """Return how many layers of each model `layers=` chooses."""
    depths = [each.layers for each in both_of(shapes)]
    if config.layers in ("same", "all"):
        return depths
    return [len(set(side)) for side in zip(*pairs_of_layers(config.layers, *depths), strict=True)]


def bytes_of_states(config: AnalyzeConfig, shapes: Shapes) -> float:
    """Return the bytes of the states of a pool, and of a batch, also in float32, in all layers of different models."""
    measure: Any = config.measure
    batch = measure.tokens_per_batch
    counts = zip(both_of(shapes), chosen_layers(config, shapes), strict=True)
    different = {shape.name: (shape, count) for shape, count in counts}.values()
    widths = [((count + measure.embed) * each.width, each.bytes / each.parameters) for each, count in different]
    most = pool_tokens(batch, sum(width for width, _ in widths), sum(each.parameters for each, _ in different))
    pool = min(most, batch * (measure.batches + getattr(measure, "fit_batches", 0))) if config.data else 0
    pool *= 1 + (measure.given == "token_position")  # as they are, and less the means
    return float(sum(width * ((pool + batch) * size + 4 * batch) for width, size in widths))


def bytes_of_logits(vocabulary: int) -> float:
    """Return the bytes of logits and of their log-probabilities in float32, of as many tokens as have them at once."""
    from thinkalike.measures.losses import CHUNK, LOGITS

    return 8.0 * min(CHUNK * vocabulary, LOGITS)


def of_distances(n: int, widths: Widths) -> float:
    """Return 2 n² Σ d: the products behind the distances of all stimuli in every layer."""
    return 2.0 * n * n * sum(widths)


def of_similarity(n: int, layers: int, folds: int, permutations: int) -> float:
    """Return n² k² for each correlation of all layers' distances: of all stimuli, without each fold, and permuted."""
    return n * (n - 1.0) * layers**2 * (1 + folds + (permutations + 1 if permutations else 0))


def of_encoding(n: int, features: int, layers: int, folds: int, permutations: int, null: int = 0) -> float:
    """Return what MLEM takes on explicit pairs of stimuli; sums by level take less.

    p f (f + 2 k) for each fit, on all stimuli and within the folds, and 2 p' f k for each prediction of the p' pairs of
    held-out stimuli: one, and one for every permutation of every feature.
    """
    pairs, held_out = n * (n - 1) / 2, (n / folds) * (n / folds - 1) / 2
    fits = (1 + folds) ** 2 * pairs * features * (features + 2 * layers)
    return (1 + null) * (fits + folds * (1 + features * permutations) * 2 * held_out * features * layers)


def of_training(tokens: float, parameters: int | float) -> float:
    """Return 6 per token and parameter: a pass, and twice that for its gradients (Kaplan et al. 2020, section 2.1)."""
    return 6.0 * tokens * parameters


def pairs_of(config: PairsConfig, side: str) -> float:
    """Return about how many pairs of sentences a side has; of the challenge, those of the part that is reported on."""
    asked = getattr(config, f"{side}_pairs") or PUBLISHED[side]
    if side == "challenge" and config.heuristic:
        return min(asked, PUBLISHED[side]) / 3 / (2 if config.label else 1)
    return float(asked)


def pretraining(config: TrainConfig, shapes: Shapes) -> list[Phase]:
    shape, seen, report = shapes["model"], float(config.pretrain.tokens), float(config.data.report_tokens or 0)
    training = Phase("training", of_training(seen, shape.parameters), {shape.name: seen})
    return [training, Phase("report", shape.forward(report, full=True), {shape.name: report})]


def finetuning(config: TrainConfig, shapes: Shapes) -> list[Phase]:
    shape, seen = shapes["model"], config.nli.epochs * PAIR * pairs_of(config.pairs, "fit")
    report = PAIR * (pairs_of(config.pairs, "report") + float(config.pairs.challenge_pairs or PUBLISHED["challenge"]))
    training = Phase("training", of_training(seen, sum(shape.operations.blocks) / 2), {shape.name: seen})
    return [training, Phase("report", shape.forward(report, PAIR), {shape.name: report})]


def population(config: AnalyzeConfig, shapes: Shapes, members: int) -> list[Phase]:
    """Return the stitches of all members at all cuts, and their CKA.

    From each cut on, each of m · m pairs runs the target's blocks: m² (L + 1) / 2 passes, and m passes of the sources.
    """
    measure: Any = config.measure
    shape, read = shapes["member"], PAIR * pairs_of(config.pairs, measure.side)
    alike = min(PAIR * float(measure.cka_pairs or read), read)
    batch = of_grams(measure.tokens_per_batch, [shape.width] * members, None) * shape.layers
    passes = members**2 * (shape.layers + 1) / 2 + members
    return [
        Phase("stitches", shape.forward(read, PAIR) * passes, {shape.name: read * members}),
        Phase("forward passes", members * shape.forward(alike, PAIR), {shape.name: alike * members}),
        Phase("comparing", max(alike / measure.tokens_per_batch, 1) * batch),
    ]


def stitching(config: TrainConfig, shapes: Shapes) -> list[Phase]:
    """Return the phases of a stitching job, of both directions if both are asked for."""
    source, target = both_of(shapes)
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    ways = [(source, target, pairs), (target, source, [pair[::-1] for pair in pairs])]
    return [phase for way in ways[: 1 + config.stitch.both] for phase in _stitches(config, *way)]


def _stitches(config: TrainConfig, source: Shape, target: Shape, pairs: Pairs) -> list[Phase]:
    stitch, row = config.stitch, config.data.context or min(source.context, target.context)
    report, step = float(config.data.report_tokens or REPORTED), float(stitch.steps * stitch.tokens_per_step)
    fit = min(config.data.fit_tokens or step or report, step or report)
    closed = not stitch.trained and stitch.kind != "identity"
    gathered = (fit if closed else min(fit, STATISTICS)) * (closed or stitch.controls)  # else likeness reads the text
    passes, states = source.forward(1.0, row) + target.forward(1.0, row), products(source.width, target.width, pairs)
    maps = 3 + 5 * stitch.controls + (1 + len(stitch.lr_multiples) + stitch.seeds + stitch.floor) * stitch.trained
    alike = min(fit, LIKENESS) + min(report, LIKENESS)
    bags = 2 * COVARIATES * (COVARIATES + 2 * (source.width + target.width) * len(pairs))
    spent = {
        "training": (step * _training(stitch, source, target, pairs, row) * stitch.trained, step * stitch.seeds),
        "closed forms": (gathered * (passes + 2 * states), gathered),
        "likeness": (alike * (passes + target.operations.output + 4 * states + bags), alike),
        "report": (maps * _tails(source, target, pairs, report, row), report),
    }
    models = (source.name, target.name)
    return [Phase(name, operations, dict.fromkeys(models, tokens)) for name, (operations, tokens) in spent.items()]


def _training(config: StitchConfig, source: Shape, target: Shape, pairs: Pairs, row: int) -> float:
    """Return the operations of one token of a step, of all seeds; rates, self-stitches and control are trained once.

    The source runs to the deepest layer that is read; each stitch takes four times its weights, and the target's tail
    and unembedding forward and backward, as frozen weights get no gradient.
    """
    own, depths = target.operations, [depth for _, depth in pairs]
    head = source.operations.forward(0, max(layer for layer, _ in pairs) + 1, row) * (config.seeds + config.controls)
    if config.loss != "cross_entropy":  # it compares with the target's own states
        head += config.seeds * (own.full(row) if config.loss == "kl" else target.forward(1.0, row))
    elif config.floor:
        head += own.forward(0, max(depths) + 1, row)
    output = 2 * own.output * (config.loss in ("cross_entropy", "kl"))

    def fits(entered: Collection[int]) -> float:
        tails = sum(own.forward(depth + 1, target.layers, row) * (config.loss != "mse") for depth in entered)
        return 2 * tails + len(entered) * (output + 4 * map_weights(config, source.width, target.width))

    return (
        head
        + fits(depths) * (config.seeds + len(config.lr_multiples) + config.controls)
        + fits(set(depths)) * config.floor
    )


def map_weights(config: StitchConfig, d: int, e: int) -> float:
    """Return the weights of a φ's linear maps from width d to width e."""
    if config.kind == "identity":
        return 0.0
    return float(config.rank * (d + e) if config.kind == "low_rank" else d * e)


def stitches_in(config: StitchConfig, pairs: Pairs) -> int:
    """Return how many φ are trained together: of all pairs, rates and controls, and of the target into itself."""
    depths = {depth for _, depth in pairs}
    return len(pairs) * (1 + len(config.lr_multiples) + config.controls) + config.floor * len(depths)


def bytes_of_stitches(config: TrainConfig, shapes: Shapes) -> float:
    """Return the most bytes that stitches of one direction take: of training, or of the likeness of states.

    All φ that are trained together have gradients, momenta and means, in float32. States of a batch are held as
    `in_parts` says, up to `AT_ONCE` bytes, beside three sets of moments in float64 of all layer pairs.
    """
    from thinkalike.evaluation.likeness import GROUPED_TOKENS, SOURCE_BYTES, TARGET_BYTES
    from thinkalike.memory import AT_ONCE

    source, target = both_of(shapes)
    stitch, pairs = config.stitch, pairs_of_layers(config.layers, source.layers, target.layers)
    momenta = 2 if stitch.optimizer == "adam" else int(stitch.momentum > 0)
    weights = map_weights(stitch, source.width, target.width) * stitches_in(stitch, pairs)
    tokens = min(config.data.fit_tokens or stitch.steps * stitch.tokens_per_step, LIKENESS)
    layers, depths = (len(set(side)) for side in zip(*pairs, strict=True))
    each = layers * SOURCE_BYTES * source.width + depths * TARGET_BYTES * target.width
    states = min(each * tokens / max(tokens // GROUPED_TOKENS, 1), AT_ONCE)
    alike = states + 3 * 8.0 * products(source.width, target.width, pairs) + bytes_of_logits(target.vocabulary)
    return max(stitch.trained * 4.0 * weights * (3 + momenta), alike)


def products(d: int, e: int, pairs: Pairs, maps: int = 0) -> float:
    """Return Σ d² + Σ e² over the layers that are read, and (1 + maps) Σ d e over their pairs."""
    layers, depths = (len(set(side)) for side in zip(*pairs, strict=True))
    return float(layers * d**2 + depths * e**2 + (1 + maps) * len(pairs) * d * e)


def _tails(source: Shape, target: Shape, pairs: Pairs, tokens: float, row: int) -> float:
    """Return the operations of a report of one map per layer pair: φ, the target's tail and the unembedding."""
    operations = target.operations
    tails = sum(operations.forward(depth + 1, target.layers, row) + operations.output for _, depth in pairs)
    return tokens * (tails + 2 * len(pairs) * source.width * target.width)


def of_maps(n: int | float, source: int, target: int) -> float:
    """Return 2 n (d² + d e + e²) for the products of the states of n tokens; solving for the maps takes far less."""
    return 2.0 * n * products(source, target, [(0, 0)])


def of_probes(tasks: Pairs, widths: Widths, folds: int, alphas: int, inner_folds: int) -> float:
    """Return what fitting takes: 4 n d k for each step, of every penalty on every inner fold, and of the chosen one.

    `tasks` are the stimuli n and levels k of each; `widths` the d of each kind of states that probes are fitted on.
    """
    steps = LBFGS * ((alphas * (inner_folds - 1) if alphas > 1 else 0) + 1) * (folds - 1)
    return float(sum(4.0 * n * width * levels * steps for n, levels in tasks for width in widths))


def text_passes(config: AnalyzeConfig, shapes: Shapes) -> list[Phase]:
    """Return the passes of both models over the text that maps are fitted on, and over the text that judges them."""
    measure: Any = config.measure
    fitted = config.data.fit_tokens or measure.fit_tokens
    tokens = float(fitted + min(config.data.report_tokens or 0, fitted))
    return forward_passes(both_of(shapes), tokens, row_of(config, shapes))


def of_steering(model: Operations, depths: Sequence[int], texts: int, length: int, passes: int) -> float:
    """Return what steered passes take: each depth's head once, and its tail and the unembedding for each vector.

    Vectors are added after the blocks `depths`, in `passes` of each of the texts of `length` tokens.
    """
    heads = sum(model.forward(0, depth + 1, length) for depth in depths)
    tails = sum(model.forward(depth + 1, len(model.blocks), length) * length + model.output for depth in depths)
    return texts * (heads * length + tails * passes)


class Site(NamedTuple):
    """The width of a site, and the operations of one token of the frozen model up to it."""

    width: int
    passing: float

    @classmethod
    def of(cls, model: Operations, width: int, layer: int, context: int) -> Site:
        return cls(width, model.forward(0, layer + 1, context))


def of_solution(d: int, e: int) -> float:
    """Return what the map of least squares from width d to width e takes, given its moments."""
    return EIGEN * d**3 + 4.0 * d * d * e


def of_start(start: str, config: SAEConfig, seen: float, own: Site, source: Site | None = None) -> float:
    """Return the operations of a start before any training; training the source beforehand is not counted.

    Args:
        seen: the share of a row's tokens whose states are read.
        own, source: of the model that is trained on, and of the one that `transferred` comes from.
    """
    read, d, f = float(config.map_tokens), own.width, config.width
    if start == "least_squares":
        return read * own.passing + 2.0 * seen * read * d * f + of_maps(seen * read, f, d) + of_solution(f, d)
    if start == "random" or source is None:
        return 0.0
    e = source.width
    carrying = 4.0 * d * e * f + 2.0 * e * (d + f)  # through maps to the other width and back: weights and biases
    if config.stitch:
        return carrying
    gathering = read * (own.passing + source.passing) + of_maps(seen * read, e, d)
    return gathering + of_solution(e, d) + of_solution(d, e) + carrying


def of_token(config: SAEConfig, seen: float, own: Site) -> float:
    """Return the operations of one token of training: the frozen model's and the autoencoder's.

    The latter are 10 d f: two products forward, and gradients of both maps and of the latents. A latent that is looked
    after because it may be dead takes 6 d.
    """
    revived = config.revived if config.dead_after and config.activation == "topk" else 0
    return own.passing + seen * own.width * (10.0 * config.width + 6.0 * revived)


def autoencoders(config: TrainConfig, shapes: Shapes, source_layer: int) -> list[Phase]:
    """Return the phases of a job; a source's autoencoders that are not there yet are a job of their own."""
    sae, model, source, row = config.sae, shapes["model"], shapes.get("source"), row_of(config, shapes)
    seen = 1 - min(sae.skip_first_tokens / row, 1)
    own = Site.of(model.operations, model.width, sae.layer, row)
    other = Site.of(source.operations, source.width, source_layer, row) if source else None
    tokens, report = float(sae.steps * sae.tokens_per_step), float(config.data.report_tokens or 0)
    fits = len(sae.starts) * len(sae.factors) * sae.seeds
    training = tokens * (own.passing + fits * (of_token(sae, seen, own) - own.passing))
    training += fits * len(sae.looks) * min(sae.curve_tokens, report) * 4.0 * own.width * sae.width
    spliced = (2 + 2 * len(sae.starts) * sae.seeds) * model.forward(report, row, full=True)
    starts = sae.seeds * sum(of_start(start, sae, seen, own, other) for start in sae.starts)
    return [
        Phase("starts", starts, {each.name: float(sae.map_tokens) for each in (model, source) if each}),
        Phase("training", training, {model.name: tokens}),
        Phase("report", spliced, {model.name: report}),
    ]
