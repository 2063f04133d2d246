"""The modules of a model that read or write its sites: found by what adds up, so proved.

In one pass over a few fixed tokens every module of a block shows its input and its output, and
sums tell which of them add to the stream. Where a norm follows attention or the MLP, what is added
comes out of the norm.

    one after the other     resid_pre + attn_out = resid_mid
                            resid_mid + mlp_out = resid_post
    the same in BERT        norm(resid_pre + attn_out) = resid_mid
                            norm(resid_mid + mlp_out) = resid_post
    side by side            resid_pre + attn_out + mlp_out = resid_post

`z` and `mlp_post` are what the last linear map of attention and of the MLP reads. What does not
add up is not offered.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from thinkalike.models.frozen import FrozenModel
from thinkalike.models.hooks import Arguments, NamedArguments, pass_lock, state_in
from thinkalike.models.module_facts import embedding_of, first_tensor, sample_tokens
from thinkalike.models.parts import component_of
from thinkalike.models.survey import SAMPLE_ROWS, explaining_pass_errors

# The tokens of each row of the sample.
TOKENS_OF_SAMPLE_ROW = 8

# By how many units of the dtype, of all that is added, a sum may differ.
SUM_TOLERANCE = 8

# Whether a site is the input or the output of a module.
Direction = Literal["input", "output"]

Choice = TypeVar("Choice", bound=Hashable)


class HookPoint(NamedTuple):
    """The module at which a site is read, and whether the site is its input or its output."""

    module: nn.Module
    direction: Direction


# The hook points of a model by site and layer.
HookPoints = dict[tuple[str, int], HookPoint]


@dataclass(frozen=True, eq=False)
class ModuleRun:
    """What a module did in the pass.

    Attributes:
        path: Its path from its block; "" for the block itself.
        module: The module.
        entered, exited: The moments at which its pass began and ended, counted over all modules.
        input, output: Its states as rows (n, d) in float64; None: it had no state for each token.
    """

    path: str
    module: nn.Module
    entered: int
    exited: int
    input: Tensor | None
    output: Tensor | None

    @property
    def is_norm(self) -> bool:
        """Whether its name is that of a norm."""
        return component_of(self.path.rpartition(".")[2]) == "norms"


# The runs of the modules of a block by path, short paths first.
Block = dict[str, ModuleRun]


class Form(NamedTuple):
    """The modules of a block that add to the stream, by path; "" stands for one that it lacks.

    Attributes:
        middle: The module whose input or output is resid_mid; None: the block has no such state.
        attention: The attention.
        mlp: The MLP.
    """

    middle: tuple[str, Direction] | None
    attention: str
    mlp: str


def hook_points(model: FrozenModel, n_heads: int) -> HookPoints:
    """Find the modules that read or write TransformerLens's hook points, by (name, layer).

    The model runs over sample tokens. The states that its modules read and write show which of the
    modules add to the residual stream. A hook point that cannot be found in this way is left out.
    If a block can be read in several ways, the one that fits most blocks is taken. "resid_mid" is
    the stream between attention and the MLP. The layer of "embed" is -1, and that of "ln_final" is
    the number of blocks.

    Args:
        model: The model.
        n_heads: The number of heads of attention. A `z`, the input of attention's last linear map,
            is left out if this does not divide its width.
    """
    blocks, runs_outside = _recorded_runs(model)
    tolerance = SUM_TOLERANCE * torch.finfo(model.dtype).eps
    # The form of a block says which modules add to the stream, and where resid_mid is.
    forms = _most_common_option([list(_fitting_forms(block, tolerance)) for block in blocks])

    points: HookPoints = {}
    for layer, (block, form) in enumerate(zip(blocks, forms, strict=True)):
        whole_block = block[""].module
        points["resid_pre", layer] = HookPoint(whole_block, "input")
        points["resid_post", layer] = HookPoint(whole_block, "output")
        if form is not None and form.middle is not None:
            path, direction = form.middle
            points["resid_mid", layer] = HookPoint(block[path].module, direction)

    attention_paths = ["" if form is None else form.attention for form in forms]
    points |= _output_points(blocks, attention_paths, "attn_out")
    projections = _output_projections(blocks, attention_paths)
    for layer, run in projections.items():
        if run.input is not None and run.input.shape[-1] % n_heads == 0:
            points["z", layer] = HookPoint(run.module, "input")

    mlp_paths = ["" if form is None else form.mlp for form in forms]
    points |= _output_points(blocks, mlp_paths, "mlp_out")
    # `mlp_post` is what the last linear map of the MLP reads, as `z` is for attention.
    for layer, run in _output_projections(blocks, mlp_paths).items():
        points["mlp_post", layer] = HookPoint(run.module, "input")

    return points | _points_outside(model, runs_outside, blocks)


def _output_points(blocks: Sequence[Block], paths: Sequence[str], site: str) -> HookPoints:
    """Return the hook points of a site that is the output of one module in each block.

    Args:
        blocks: The recorded modules of each block.
        paths: For each block the path of the module; "": the block lacks the site.
        site: The name of the site, such as "attn_out".
    """
    points: HookPoints = {}
    for layer, (block, path) in enumerate(zip(blocks, paths, strict=True)):
        if path:
            points[site, layer] = HookPoint(block[path].module, "output")
    return points


def _output_projections(blocks: Sequence[Block], paths: Sequence[str]) -> dict[int, ModuleRun]:
    """Return, by layer, the linear map that makes the output of one module in each block.

    If several maps of a block have the same output, the one whose path occurs in most blocks is
    taken. A block without such a map is left out.

    Args:
        blocks: The recorded modules of each block.
        paths: For each block the path of the module; "": the block is left out.
    """
    paths_of_maps = []
    for block, path in zip(blocks, paths, strict=True):
        paths_of_maps.append(list(_projections(block, path)) if path else [])
    projections = {}
    for layer, path_of_map in enumerate(_most_common_option(paths_of_maps)):
        if path_of_map:
            projections[layer] = blocks[layer][path_of_map]
    return projections


def _recorded_runs(model: FrozenModel) -> tuple[list[Block], list[ModuleRun]]:
    """Run a model over sample tokens, and return what its modules read and wrote.

    The first list has for each block the runs of its modules by path; the second one has the runs
    of all modules outside the blocks. Of a module that runs twice, the last run is kept. Runs are
    sorted by the depth of their paths, and those of one depth by the moment at which they ended.
    """
    tokens = sample_tokens(model.vocabulary, model.context, SAMPLE_ROWS, TOKENS_OF_SAMPLE_ROW)
    moments = itertools.count()
    entries: dict[nn.Module, tuple[int, Tensor | None]] = {}
    runs: dict[str, ModuleRun] = {}

    def rows_of(find_state: Callable[[], Tensor]) -> Tensor | None:
        """Return a copy of a state as rows (n, d) in float64, one for each of the n tokens.

        None means that the module has no such state: it has no arguments, returns no tensor, or
        one of another shape.
        """
        with contextlib.suppress(LookupError, StopIteration, TypeError, AttributeError):
            state = find_state()
            if state.is_floating_point() and state.shape[:-1].numel() == tokens.numel():
                return state.reshape(tokens.numel(), -1).to("cpu", torch.float64, copy=True)
        return None

    def enter(module: nn.Module, args: Arguments, kwargs: NamedArguments) -> None:
        moment = next(moments)
        entries[module] = (moment, rows_of(lambda: state_in(args, kwargs)))

    def leave(path: str, module: nn.Module, output: object) -> None:
        entered, rows_of_input = entries[module]
        moment = next(moments)
        rows_of_output = rows_of(lambda: first_tensor(output))
        runs[path] = ModuleRun(path, module, entered, moment, rows_of_input, rows_of_output)

    with (
        contextlib.ExitStack() as hooks,
        explaining_pass_errors(model.name),
        pass_lock(model.module),
    ):
        for path, module in model.module.named_modules():
            # The default argument keeps the path of this iteration.
            def leave_path(
                module: nn.Module, _: Arguments, output: object, path: str = path
            ) -> None:
                leave(path, module, output)

            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(leave_path))
        model.full(tokens)

    blocks: list[Block] = [{} for _ in range(model.n_layers)]
    runs_outside = []
    prefix = f"{model.family.blocks}."
    for path in sorted(runs, key=lambda path: (path.count("."), runs[path].exited)):
        if not path.startswith(prefix):
            runs_outside.append(runs[path])
            continue
        layer, _, path_in_block = path.removeprefix(prefix).partition(".")
        blocks[int(layer)][path_in_block] = replace(runs[path], path=path_in_block)
    return blocks, runs_outside


def _most_common_option(options_of_blocks: Sequence[Sequence[Choice]]) -> list[Choice | None]:
    """Choose for each block the one of its options that occurs in most blocks.

    A block has several options if, for example, one of its modules adds 0, which fits everywhere.
    Of options that are equally common, the first one of the block is chosen. A block without
    options gets None.
    """
    counts = Counter(itertools.chain.from_iterable(options_of_blocks))
    choices = []
    for options in options_of_blocks:
        choices.append(max(options, key=lambda option: counts[option], default=None))
    return choices


def _fitting_forms(block: Block, tolerance: float) -> Iterator[Form]:
    """Yield every form that fits the states that the modules of a block read and wrote.

    A form names the modules of the block that are attention and the MLP: their outputs, added to
    the block's input, give its output. It also says where the state between them is. Nothing is
    yielded if the block has no state for each token.

    Args:
        block: The recorded modules of the block, by their paths in it; that of the block is "".
        tolerance: By how much a sum of states may differ from another state, as a share of the
            sum of absolute values.
    """
    resid_pre = block[""].input
    resid_post = block[""].output
    if resid_pre is None or resid_post is None:
        return
    sums = _Sums(block, resid_pre, resid_post, tolerance)
    yield from _forms_in_turn(sums)
    yield from _forms_with_norms_behind(sums)
    yield from _forms_side_by_side(sums)


class _Sums:
    """Tells which modules of a block have outputs that add up to a given state.

    Attributes:
        block: The block.
        resid_pre, resid_post: Its input and its output, (n, d).
        tolerance: By how much a sum may differ, as a share of all that is added.
        writers: The modules inside it with outputs of the shape of the stream.
        readers: The modules inside it with inputs of that shape.
    """

    def __init__(self, block: Block, resid_pre: Tensor, resid_post: Tensor, tolerance: float):
        """Find the modules inside the block that read or write states of the stream's shape.

        `resid_pre` and `resid_post` are the block's input and output; sums may differ by
        `tolerance`, a share of all that is added.
        """
        self.block = block
        self.resid_pre = resid_pre
        self.resid_post = resid_post
        self.tolerance = tolerance
        self.writers: list[ModuleRun] = []
        self.readers: list[ModuleRun] = []
        for path, run in block.items():
            if path == "":  # the block itself
                continue
            if run.output is not None and run.output.shape == resid_post.shape:
                self.writers.append(run)
            if run.input is not None and run.input.shape == resid_post.shape:
                self.readers.append(run)

    def is_sum_of(self, total: Tensor | None, *summands: Tensor | None) -> bool:
        """Return whether states add up to a total; False if one of them is missing."""
        return _is_sum(total, summands, self.tolerance)

    def modules_completing(
        self,
        total: Tensor | None,
        *summands: Tensor | None,
        after: int = 0,
        before: int | float = math.inf,
    ) -> list[ModuleRun]:
        """Return the modules whose output completes a sum: total = sum of summands + output.

        Args:
            total: The sum. If it or a summand is None, no module is returned.
            summands: The states to which the output is added.
            after, before: The module must have begun and ended to run between these two moments,
                counted over all modules that begin or end in a pass.
        """
        completing = []
        for run in self.writers:
            is_between = run.entered >= after and run.exited <= before
            if is_between and self.is_sum_of(total, *summands, run.output):
                completing.append(run)
        return completing


def _forms_in_turn(sums: _Sums) -> Iterator[Form]:
    """Yield the forms of a block in which attention adds to the stream first, and then the MLP.

    The state between them, resid_mid, is the input of a module that runs before the MLP, usually
    a norm: resid_pre + attention = resid_mid, and resid_mid + MLP = resid_post. If no single
    module makes the first sum, the form has the MLP alone.
    """
    for reader in sums.readers:
        resid_mid = reader.input
        mlps = sums.modules_completing(sums.resid_post, resid_mid, after=reader.entered)
        attentions = []
        if mlps:
            attentions = sums.modules_completing(resid_mid, sums.resid_pre, before=reader.entered)
        for attention, mlp in _named_pairs(sums.block, attentions, mlps):
            yield Form(middle=(reader.path, "input"), attention=attention, mlp=mlp)

        # Something other than a single module has added to the stream before the MLP does. (If
        # nothing has, resid_mid = resid_pre, and the block is not of this kind.)
        is_stream_changed = not sums.is_sum_of(resid_mid, sums.resid_pre)
        if is_stream_changed and not attentions:
            for run in mlps:
                if not _is_attention(sums.block, run):
                    yield Form(middle=None, attention="", mlp=run.path)


def _forms_with_norms_behind(sums: _Sums) -> Iterator[Form]:
    """Yield the forms of a block in which a norm follows each addition, as in BERT.

    With two norms: norm1(resid_pre + attention) = resid_mid, and norm2(resid_mid + MLP) =
    resid_post. Every pair of modules that read and write states of the stream's shape is tried.
    """
    norms = [run for run in sums.readers if run in sums.writers]
    for first, last in itertools.permutations(norms, 2):
        are_in_order = first.exited < last.entered
        if not are_in_order or not sums.is_sum_of(sums.resid_post, last.output):
            continue
        resid_mid = first.output
        # An MLP completes resid_mid + MLP = input of the last norm, and attention completes
        # resid_pre + attention = input of the first norm.
        mlps = sums.modules_completing(
            last.input, resid_mid, after=first.exited, before=last.entered
        )
        attentions = []
        if mlps:
            attentions = sums.modules_completing(first.input, sums.resid_pre, before=first.entered)
        for attention, mlp in _named_pairs(sums.block, attentions, mlps):
            yield Form(middle=(first.path, "output"), attention=attention, mlp=mlp)


def _forms_side_by_side(sums: _Sums) -> Iterator[Form]:
    """Yield the forms of a block in which attention and the MLP both read the block's input.

    Then resid_pre + attention + MLP = resid_post. A block with attention alone, where resid_pre +
    attention = resid_post, is included. There is no state between attention and the MLP.
    """
    for run in sums.writers:
        if not _is_attention(sums.block, run):
            continue
        if sums.is_sum_of(sums.resid_post, sums.resid_pre, run.output):
            yield Form(middle=None, attention=run.path, mlp="")
        # The modules with resid_pre + output of `run` + their own output = resid_post.
        mlps = sums.modules_completing(sums.resid_post, sums.resid_pre, run.output)
        for attention, mlp in _named_pairs(sums.block, [run], mlps):
            yield Form(middle=None, attention=attention, mlp=mlp)


def _named_pairs(
    block: Block, attentions: Sequence[ModuleRun], mlps: Sequence[ModuleRun]
) -> Iterator[tuple[str, str]]:
    """Yield (path of attention, path of the MLP) for each pair of candidates.

    The candidates fit by their outputs; here their names are checked as well. A pair is left out
    if its candidate for the MLP is attention by its name. The first path is "" (not known) if the
    candidate for attention is not attention by its name.

    Args:
        block: The modules of the block that ran.
        attentions: The candidates for attention.
        mlps: The candidates for the MLP.
    """
    for attention, mlp in itertools.product(attentions, mlps):
        if _is_attention(block, mlp):
            continue
        attention_path = attention.path if _is_attention(block, attention) else ""
        yield attention_path, mlp.path


def _is_sum(total: Tensor | None, summands: Sequence[Tensor | None], tolerance: float) -> bool:
    """Return whether states add up to a total, as far as rounding allows.

    In each entry, |total - sum of x| <= tolerance * (|total| + sum of |x|), over the summands x.
    It is false if the total or a summand is None, or if their shapes differ.
    """
    if total is None:
        return False
    sum_of_summands = torch.zeros_like(total)
    sum_of_sizes = total.abs()
    for summand in summands:
        if summand is None or summand.shape != total.shape:
            return False
        sum_of_summands = sum_of_summands + summand
        sum_of_sizes = sum_of_sizes + summand.abs()
    differences = (total - sum_of_summands).abs()
    return bool((differences <= tolerance * sum_of_sizes).all())


def _is_attention(block: Block, run: ModuleRun) -> bool:
    """Return whether a module of a block is attention, or a norm that reads attention's output.

    A module is attention if its path in the block, its class, or the class of a module around it
    has "att" in its name.
    """
    if run.is_norm:
        for candidate in block.values():
            is_whole_block = candidate.path == ""
            if is_whole_block or candidate.is_norm:
                continue
            if _is_same(candidate.output, run.input) and _is_attention(block, candidate):
                return True
        return False
    names = [run.path]
    path_components = run.path.split(".")
    for depth in range(1, len(path_components) + 1):
        outer_path = ".".join(path_components[:depth])
        if outer_path in block:
            names.append(type(block[outer_path].module).__name__)
    return any("att" in name.lower() for name in names)


def _is_same(first: Tensor | None, second: Tensor | None) -> bool:
    """Return whether two states are equal to the bit; False if one of them is missing."""
    return first is not None and second is not None and torch.equal(first, second)


def _projections(block: Block, path: str) -> Iterator[str]:
    """Yield the paths of the linear maps in a block that make the output of the module at `path`.

    The output of such a map equals the output of the module to the bit. If the module is a norm
    after attention or the MLP, the output of the map equals the input of the norm instead.
    """
    module_run = block[path]
    state = module_run.input if module_run.is_norm else module_run.output
    for run in block.values():
        weight = getattr(run.module, "weight", None)
        has_matrix = weight is not None and weight.dim() == 2
        # An embedding has a matrix too, but reads token ids, so its `run.input` is None.
        is_linear_map = has_matrix and run.input is not None
        if is_linear_map and _is_same(run.output, state):
            yield run.path


def _points_outside(
    model: FrozenModel, runs_outside: Sequence[ModuleRun], blocks: Sequence[Block]
) -> HookPoints:
    """Return the hook points "embed" and "ln_final", as far as the model has them.

    "embed" is the first module before the blocks whose output is the tokens' rows of the
    embedding, up to one factor. "ln_final" is the first norm that reads the last block's output,
    and whose own output is read by a later module.

    Args:
        model: The model.
        runs_outside: What the modules outside the blocks did in a pass over sample tokens.
        blocks: What the modules of each block did in it.
    """
    start_of_first_block = blocks[0][""].entered
    last_resid_post = blocks[-1][""].output
    embeddings = _embedding_rows(model)
    tolerance = SUM_TOLERANCE * torch.finfo(model.dtype).eps

    points: HookPoints = {}
    for run in runs_outside:
        is_before_blocks = run.exited < start_of_first_block
        if is_before_blocks and run.output is not None and run.output.shape == embeddings.shape:
            scale = run.output.norm() / embeddings.norm()  # Gemma multiplies its embedding
            if torch.allclose(run.output, scale * embeddings, rtol=tolerance):
                points.setdefault(("embed", -1), HookPoint(run.module, "output"))

        reads_last_block = run.is_norm and _is_same(run.input, last_resid_post)
        if reads_last_block and _is_output_read_later(run, runs_outside):
            points.setdefault(("ln_final", model.n_layers), HookPoint(run.module, "output"))
    return points


def _embedding_rows(model: FrozenModel) -> Tensor:
    """Return the row of the embedding for each of the n sample tokens, (n, d), in float64."""
    weight = embedding_of(model.module)
    tokens = sample_tokens(model.vocabulary, model.context, SAMPLE_ROWS, TOKENS_OF_SAMPLE_ROW)
    return weight[tokens.flatten().to(weight.device)].double().cpu()


def _is_output_read_later(run: ModuleRun, runs: Iterable[ModuleRun]) -> bool:
    """Return whether a module of `runs` that ran later has the output of `run` as its input.

    The two must be equal to the bit.
    """
    return any(later.entered > run.exited and _is_same(later.input, run.output) for later in runs)
