"""What differs between two models before any text is read: settings, and tensors with what was done to each of them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from thinkalike.digests import tokenizer_facts
from thinkalike.instruments.diff.screen import runs
from thinkalike.measures.edits import Edit, edit
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.identity import output_distance
from thinkalike.models.module_facts import HEADS, TOLERANCE, embedding_of, entries_of, number_in, text_config
from thinkalike.models.parts import comparable_tensors, parts_of
from thinkalike.models.traits import traits_that_differ
from thinkalike.processes import counted

MIXTURES = ("linear mixture", "spherical mixture", "weighted sum")
NAMED = 4  # tokens, neurons and the like that are named
LONG = 80  # letters of a value
INWARD = re.compile(
    r"o_proj|out_proj|c_proj|down_proj|fc_out|dense_4h_to_h|(^|\.)o$|output\.dense|attention\.dense|wo$|w2$"
)
READS = {"query": r"(^|\.)(q|q_proj|query|q_lin|wq)$", "key": r"(^|\.)(k|k_proj|key|k_lin|wk)$",
         "value": r"(^|\.)(v|v_proj|value|v_lin|wv)$"}  # fmt: skip
KEYS = ("num_key_value_heads", "n_key_value_heads")
WIDTH = ("head_dim", "d_head")
IN_TURN = re.compile(r"c_attn|qkv_proj|Wqkv")  # queries, keys and values of all heads one after the other


def settings_that_differ(base: FrozenModel, changed: FrozenModel) -> pd.DataFrame:
    """Return, as text, what differs beside the weights: entries of configurations, parts of tokenizers, and marks.

    So does what no checkpoint holds, such as the class of a module, its attributes and its buffers. If nothing of all
    this is known to differ and the models still give different outputs, the forward pass itself is a row.
    """
    first, second = (entries_of(model.module) | {"marks": model.marks()} for model in (base, changed))
    for own, model in ((first, base), (second, changed)):
        own |= {f"tokenizer.{name}": part for name, part in tokenizer_facts(model.tokenizer).items()}
    rows = [{"setting": name, "base": _brief(first.get(name)), "changed": _brief(second.get(name))}
            for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]  # fmt: skip
    rows += _traits_by_block(base, changed)
    return pd.DataFrame(rows, columns=["setting", "base", "changed"])


def pass_that_differs(base: FrozenModel, changed: FrozenModel) -> pd.DataFrame:
    """Return a row for the forward pass if two models give different outputs for fixed tokens, and else none."""
    error = output_distance(base, changed)
    is_same = error <= TOLERANCE[base.dtype] / 10  # weights that lie elsewhere in memory are summed in another order
    rows = [] if is_same else [{"setting": "forward pass", "base": "0", "changed": f"{error:.1e} of the largest logit"}]
    return pd.DataFrame(rows, columns=["setting", "base", "changed"])


def _traits_by_block(base: FrozenModel, changed: FrozenModel) -> list[dict[str, str]]:
    """Return the traits that differ, those that differ in the same way in several blocks in one row.

    A trait that follows from settings that differ is left out, as these say it already.
    """
    blocks = re.compile(rf"{re.escape(base.family.blocks)}\.(\d+)\.?(.*)")
    layers_of: dict[tuple[str, str, str], list[int]] = {}
    rows: list[dict[str, str]] = []
    for (path, name), (before, after) in traits_that_differ(base.module, changed.module).items():
        inside = blocks.fullmatch(path)
        if inside:
            what = ".".join(filter(None, [inside[2], name])) or "class"
            layers_of.setdefault((what, before, after), []).append(int(inside[1]))
        else:
            what = ".".join(filter(None, [path, name])) or "class"
            rows.append({"setting": what, "base": before, "changed": after})
    for (what, before, after), layers in layers_of.items():
        where = f"block{'s' * (len(layers) > 1)} {', '.join(runs(sorted(layers)))}"
        rows.append({"setting": f"{what} of {where}", "base": before, "changed": after})
    return rows


def _brief(value: Any) -> str:
    """Return a value as text, of a long list or table its length and digest; "none" is read back as it is."""
    said = "none" if value is None else repr(value)
    is_long = len(said) > LONG and isinstance(value, list | dict)
    return f"{len(value)} entries ({hashlib.sha256(said.encode()).hexdigest()[:6]})" if is_long else said


def edits_of(
    base: FrozenModel, changed: FrozenModel, other: FrozenModel | None = None
) -> tuple[pd.DataFrame, Sequence[int]]:
    """Return a row for each tensor that differs, and the tokens whose row of the embedding does.

    The columns are tensor, component, layer, operation, size, spread, amount and places (see `Edit`), in words; places
    of a mixture with an `other` model are its name. Tensors that are tied are one.
    """
    mixed = comparable_tensors(other.module) if other else {}
    parts, tokens, embedding = parts_of(base), list[int](), embedding_of(base.module)
    ours, theirs, rows, seen = comparable_tensors(base.module), comparable_tensors(changed.module), [], set[int]()
    for name, own in counted(list(ours.items()), "tensor"):
        if (own.numel() and own.data_ptr() in seen) or name not in theirs:
            continue
        seen.add(own.data_ptr())
        third = mixed[name].float().cpu() if name in mixed else None
        if (found := edit(own.float().cpu(), theirs[name].float().cpu(), third)) is None:
            continue
        part = next((part for part in parts if name.startswith(part.prefixes)), None)
        is_mixture = other is not None and found.operation in MIXTURES
        where = other.name if other and is_mixture else places_in_words(base, name, own, found)
        if own.data_ptr() == embedding.data_ptr():
            tokens = list(found.places) if found.axis == 0 else list(range(base.vocabulary))
        rows.append({
            "tensor": name, "component": part.component if part else "", "layer": part.layer if part else -1,
            "operation": found.operation, "size": found.size, "spread": found.spread, "amount": found.amount,
            "places": where,
        })  # fmt: skip
    for name in [name for name in (*ours, *theirs) if (name in ours) != (name in theirs)]:
        part = next((part for part in parts if name.startswith(part.prefixes)), None)
        rows.append({
            "tensor": name, "component": part.component if part else "", "layer": part.layer if part else -1,
            "operation": "removed" if name in ours else "added",
            "size": math.nan, "spread": math.nan, "amount": math.nan, "places": "",
        })  # fmt: skip
    columns = ["tensor", "component", "layer", "operation", "size", "spread", "amount", "places"]
    return pd.DataFrame(rows, columns=columns), tokens


def places_in_words(model: FrozenModel, name: str, tensor: Tensor, found: Edit) -> str:
    """Return the places of an edit by what they are: heads, neurons, experts, tokens, or rows and columns."""
    if found.axis is None or not found.places:
        return ""
    path, places = name.rpartition(".")[0], found.places
    if found.axis == 0 and len(tensor) == model.vocabulary and model.family.blocks not in name:
        return _few("token", [repr(model.tokenizer.decode([place])) for place in places])
    outward = 1 if type(model.module.get_submodule(path)).__name__ == "Conv1D" and tensor.dim() == 2 else 0
    if tensor.dim() == 3 and found.axis == 0:
        return _few("expert", list(map(str, places)))
    if heads := _heads(model, path, tensor.shape[found.axis], found.axis == outward, places):
        return heads
    inner = re.search(r"mlp|ffn|feed_forward", path) and (found.axis == outward) != bool(INWARD.search(path))
    unit = "neuron" if inner else "row" if found.axis == 0 else "column"
    return _few(unit, list(runs(places)), len(places))


def _few(unit: str, names: Sequence[str], count: int | None = None) -> str:
    count = len(names) if count is None else count
    said = ", ".join(names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{unit}{'s' if count != 1 else ''} {said}{more}"


def _heads(model: FrozenModel, path: str, length: int, outward: bool, places: Sequence[int]) -> str:
    """Return whole heads of attention in words, or "" where the places are not whole heads or no heads at all."""
    config = text_config(model.module)
    sizes = [number_in(config, names) or 0 for names in (HEADS, KEYS, WIDTH)]
    queries, keys, width = sizes[0], sizes[1] or sizes[0], sizes[2] or model.d_model // max(sizes[0], 1)
    if not queries or "att" not in path or length % width:
        return ""
    slots = [f"query head {head}" for head in range(queries)]
    if outward and IN_TURN.search(path):
        slots += [f"{kind} head {head}" for kind in ("key", "value") for head in range(keys)]
    elif outward and "query_key_value" in path and queries == keys:
        slots = [f"{kind} head {head}" for head in range(queries) for kind in READS]
    elif outward:
        kind = next((kind for kind, pattern in READS.items() if re.search(pattern, path)), "")
        slots = [f"{kind} head {head}" for head in range(length // width)] if kind else []
    else:
        slots = [f"head {head}" for head in range(queries)]
    hit = sorted({place // width for place in places})
    if length != len(slots) * width or len(places) != len(hit) * width:
        return ""
    by_kind: dict[str, list[int]] = {}
    for slot in hit:
        kind, _, number = slots[slot].rpartition(" ")
        by_kind.setdefault(kind, []).append(int(number))
    return " and ".join(_few(kind, list(runs(each)), len(each)) for kind, each in by_kind.items())
