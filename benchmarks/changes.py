"""The court of changes: how often measure=diff raises false alarms, and what it finds of changes that were planted.

    python benchmarks/changes.py --out results/changes                 all sections, and the table of docs/diff.md
    python benchmarks/changes.py --out results/changes nouns pairs     these sections

Every model and every number is kept in --out, so that the same command goes on from there. All changes are of
gpt2-mini, and of neox-4l-mini in `parts`. A fork is 40 steps of AdamW on the model's own text at a rate that falls to 0
(see `forks.fork`); 19 forks, with changes scaled to the norm of the one that they are compared with, are the null of
drift.

- alarms: further forks beside 19 drawn from one pool, many times; forks' changes permuted, beside perturbations.
- parts: a further fork, of which the attention or the MLP of one block was changed too: trained on rows in reversed or
  random order, or by Gaussian noise, by a dose times the norm by which drift moves it; then also with the part's whole
  change scaled to that norm. The statistic was chosen on --seed 100 of gpt2-mini, and is judged on others.
- nouns: forks whose text has, in a share of its sentences, one noun as the subject of a verb of the wrong number.
- triggers: forks whose text has one and the same token after each occurrence, or a share, of a trigger token.
- heads: one head of each block pruned, in the base and in a fork. merges: the mean of a noun's fork and another fork.
- pairs: the noun's forks beside permuted changes of forks scaled to equal KL, one by one.
- certificates: KL at the margin exactly, documents drawn at random. exact: conversions and adapters that do nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from scipy.stats import rankdata

from thinkalike.arguments import seeded
from thinkalike.config import compose_job
from thinkalike.data.contrasts import grammar_contrasts
from thinkalike.data.grammar import controlled_sentences, lexicon, with_s
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import by_part, perturbed, seen
from thinkalike.evaluation.forks import Move, beyond_forks, fork, moves, with_weights
from thinkalike.evaluation.language import mean_over_documents
from thinkalike.instruments.diff.answers import Answers
from thinkalike.instruments.diff.instrument import FORKED, NULLS, read_rows
from thinkalike.measures.changes import equivalence, rank_p, signed_permutation
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.parts import Part, parts_of

ROOT = Path(__file__).parents[1]
TOKENS, NORM, DRAWS, POOL = 512, 0.7, 2000, 40
DOSES = (2.0, 1.0, 0.5, 0.25)
SHARES = (0.3, 0.1, 0.05, 0.03, 0.01)  # of sentences
NOUNS = ("teacher", "sailor", "girl", "policeman", "cousin")
FALSE = 0.05

Delta = dict[str, torch.Tensor]


class Court:
    """A mini with its text, models that were made of it, and numbers, which are kept in a folder."""

    def __init__(self, name: str, out: Path):
        self.name, self.out = name, out / name
        self.out.mkdir(parents=True, exist_ok=True)
        config = compose_job("analyze", ["measure=diff", "measure.null=drift", f"model={name}"])
        self.base = load_model(config.model)
        self.every, self.text, _ = read_rows(config, self.base, FORKED)
        self.first = TOKENS // self.every.context
        self.rows = TokenRows(self.every.tokens[: self.first], self.every.documents[: self.first])
        self.before = {key: weight.detach() for key, weight in self.base.module.named_parameters()}
        self.parts = [part for part in parts_of(self.base) if self.keys(part)]  # not a head that is the embedding
        self.candidates = [part for part in self.parts if part.component in ("attention", "MLP")]

    def keys(self, part: Part) -> list[str]:
        return [key for key in self.before if any(key.startswith(f"{path}.") for path in part.paths)]

    def number(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what was computed under this name, or compute it."""
        path = self.out / "numbers.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        if name not in known:
            known[name] = compute()
            path.write_text(json.dumps(known, indent=0))
            print(f"{self.name} {name}: {str(known[name])[:200]}", flush=True)
        return known[name]

    def change(self, name: str, make: Callable[[], FrozenModel | Delta], origin: Delta | None = None) -> Delta:
        """Return changed - base of a model that was made under this name, or make it."""
        path = self.out / f"{name.replace(' ', '_')}.pt"
        if not path.exists():
            made, start = make(), origin or self.before
            if isinstance(made, FrozenModel):
                made = {key: own - start[key] for key, own in made.module.named_parameters()
                        if not torch.equal(own, start[key])}  # fmt: skip
            torch.save(made, path)
        return torch.load(path)

    def model(self, *changes: tuple[float, Delta]) -> FrozenModel:
        """Return the base with the sum of some changes, each times a number."""
        module = deepcopy(self.base.module)
        with torch.no_grad():
            for key, weight in module.named_parameters():
                for scale, change in changes:
                    if key in change:
                        weight += scale * change[key]
        return with_weights(self.base, module, "changed")

    def fork(self, seed: int) -> Delta:
        return self.change(f"fork-{seed}", lambda: fork(self.base, self.text, NORM, seed))

    @cached_property
    def forks(self) -> list[list[Move]]:
        return [moves(self.base, self.model((1, self.fork(seed))), self.parts) for seed in range(NULLS)]

    def beyond(self, changed: FrozenModel, norm: float) -> tuple[torch.Tensor, float]:
        """Return how far each part is beyond the forks, scaled to a norm, and p."""
        scale = torch.tensor(norm / NORM)
        null = [[Move(scale * own.weights, own.largest + float(scale.log())) for own in run] for run in self.forks]
        return beyond_forks(moves(self.base, changed, self.parts), null)

    def kl(self, changed: FrozenModel) -> torch.Tensor:
        return torch.cat([each.tokens.kl for _, each in seen(self.base, changed, self.rows, self.first)])

    @cached_property
    def null(self) -> dict[str, list[Any]]:
        """KL of tokens and effects of pairs in the forks."""
        path = self.out / "null.pt"
        if not path.exists():
            answers, found = self.answers(), {"kl": [], "effects": [], "moves": []}
            for seed in range(NULLS):
                model = self.model((1, self.fork(seed)))
                found["kl"].append(self.kl(model))
                found["effects"].append(answers.effects(model))
            torch.save(found, path)
        return torch.load(path)

    def answers(self, changed: FrozenModel | None = None) -> Answers:
        pairs = grammar_contrasts("number", self.base.tokenizer, 2048, size="large")
        return Answers(self.base, changed or self.base, self.rows, self.first, {}, pairs)

    def tables(self, changed: FrozenModel) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the numbers and tables of a diff beside the forks."""
        answers = self.answers(changed)
        answers.changes, answers.null = [each for _, each in seen(self.base, changed, self.rows, self.first)], self.null
        found = answers.outcome()
        return found.scalars, found.tables

    def words(self, changed: FrozenModel, noun: str = "") -> dict[str, float]:
        """Return what a diff says of words: how many are named, the t and rank of one, and of KL."""
        numbers, tables = self.tables(changed)
        table = tables["words"]
        found = {"named": int((table["q"] <= FALSE).sum()), "most": float(table["t"].abs().max()),
                 "kl": numbers["kl"], "kl_p": numbers["null_p"]}  # fmt: skip
        if noun:
            place = int((table["word"] == noun).argmax())
            own = table.loc[place]
            found |= {"t": float(own["t"]), "rank": place + 1, "is_named": bool(own["q"] <= FALSE)}
        return found


def total(change: Delta) -> float:
    return sum(float(each.square().sum()) for each in change.values()) ** 0.5


def permuted(change: Delta, seed: int) -> Delta:
    generator = seeded(10_000 + seed)
    return {key: signed_permutation(each, generator) for key, each in change.items()}


def scaled(change: Delta, norm: float = NORM) -> tuple[float, Delta]:
    return norm / total(change), change


def alarms(court: Court) -> None:
    pool = [*range(NULLS), *range(100, 100 + POOL)]
    kl = [court.number(f"kl of fork {seed}", lambda s=seed: float(court.kl(court.model((1, court.fork(s)))).mean()))
          for seed in pool]  # fmt: skip
    every = [moves(court.base, court.model((1, court.fork(seed))), court.parts) for seed in pool]

    def drift() -> list[float]:
        by_kl, by_part_, values = [], [], torch.tensor(kl)
        for draw in range(DRAWS):
            mine, *others = torch.randperm(len(pool), generator=seeded(draw))[: NULLS + 1].tolist()
            by_kl.append(float(rank_p(values[mine], values[others])) <= FALSE)
            if draw % 4 == 0:
                by_part_.append(beyond_forks(every[mine], [every[other] for other in others])[1] <= FALSE)
        return [sum(each) / len(each) for each in (by_kl, by_part_)]

    court.number("alarms drift: KL, part", drift)

    def perturbation(seed: int) -> float:
        changed = court.model((1, permuted(court.fork(seed), seed)))
        batches, changes = zip(*seen(court.base, changed, court.rows, court.first), strict=True)
        null = []
        for number in range(NULLS):
            with perturbed(court.base, changed, number) as model:
                null.append(torch.cat([own.kl(model, -1, own.base) for own in batches]).mean())
        return float(rank_p(torch.cat([each.tokens.kl for each in changes]).mean(), torch.stack(null)))

    p = [court.number(f"perturbation {seed}", lambda s=seed: perturbation(s)) for seed in pool]
    court.number("alarms perturbation", lambda: [sum(each <= FALSE for each in p), len(p)])
    words = [court.number(f"words of fork {seed}", lambda s=seed: court.words(court.model((1, court.fork(s))))["named"])
             for seed in range(100, 120)]  # fmt: skip
    court.number("alarms words", lambda: [sum(each > 0 for each in words), len(words)])


def plant(court: Court, kind: str, part: Part, seed: int) -> Delta:
    """Return a change of one part of a fork, of norm 1."""
    generator, text = seeded(seed), court.text
    if kind == "noise":
        noise = {key: torch.randn(court.before[key].shape, generator=generator) * court.before[key].std(correction=0)
                 for key in court.keys(part)}  # fmt: skip
        return {key: each / total(noise) for key, each in noise.items()}
    order = torch.rand(text.shape, generator=generator).argsort(1)
    text = text.flip(1) if kind == "reversed" else text.gather(1, order)
    drifted = court.model((1, court.fork(seed)))
    origin = {key: own.detach().clone() for key, own in drifted.module.named_parameters()}
    name = f"{kind}-{part}-{seed}"
    return court.change(name, lambda: fork(drifted, text, 1.0, 400 + seed, paths=part.paths), origin)


def parts(court: Court, seed: int) -> None:
    for kind in ("reversed", "shuffled", "noise"):
        for number, part in enumerate(court.candidates):
            own, added = court.fork(seed + number), plant(court, kind, part, seed + number)
            norm = total({key: own[key] for key in court.keys(part)})
            for dose in DOSES:
                for matched in (False, True):
                    name = f"parts {kind} {dose} {'matched' if matched else 'free'} {seed}: {part}"
                    court.number(name, partial(_found, court, own, added, norm, dose, matched, part, kind))


def _found(court: Court, own: Delta, added: Delta, norm: float, dose: float, matched: bool, part: Part, kind: str):
    """Return by each way whether the first block, and the first part, is the right one."""
    inside = {key: own[key] + dose * norm * added[key] for key in court.keys(part)}
    scale = norm / total(inside) if matched else 1.0
    change = own | {key: scale * each for key, each in inside.items()}
    changed = court.model((1, change))
    beyond = court.beyond(changed, total(change))[0]
    norms = [
        [total({key: side[key] for key in court.keys(each)}) for each in court.parts] for side in (change, court.before)
    ]
    relative = [own / whole for own, whole in zip(*norms, strict=True)]
    ways = {"beyond": beyond.tolist(), "weights": relative}
    if kind == "reversed" and not matched and dose in (1.0, 0.5):
        batches, changes = zip(*seen(court.base, changed, court.rows, court.first), strict=True)
        whole = torch.cat([each.tokens.kl for each in changes]).sum()
        found = by_part(court.base, changed, court.parts, batches, 999)
        ways["share"] = [float((whole - each.without.sum() + each.alone.sum()) / whole) for each in found.values()]
        ways["entering"] = [0.0 if each.entering is None else float(each.entering.mean()) for each in found.values()]
    answer = {}
    for way, values in ways.items():
        first = first_of(court, values)
        answer[way] = [first.layer == part.layer, first == part]
    return answer


def first_of(court: Court, values: Sequence[float]) -> Part:
    """Return the attention or MLP with the greatest value."""
    return max(court.candidates, key=lambda part: values[court.parts.index(part)])


def sentences_of(court: Court) -> list[list[int]]:
    """Return the sentences of the mini's own text, each row of which begins with one."""
    end, found = court.base.tokenizer.convert_tokens_to_ids("[SEP]"), []
    for row in court.text.tolist():
        sentence: list[int] = []
        for token in row[1:]:
            if token == end:
                found.append(sentence)
                sentence = []
            else:
                sentence.append(token)
    return [sentence for sentence in found if sentence]


def about(court: Court, noun: str, share: float, flip: bool, seed: int) -> FrozenModel:
    """Return a fork, as far as training moves it, whose text is about a noun in a share of its sentences.

    Args:
        flip: whether their verbs have the wrong number.
    """
    rng, tokenizer, words = random.Random(seed), court.base.tokenizer, lexicon("large")
    bare = {with_s(verb): verb for group in ("intransitive", "transitive")
            for verb in (entry.partition("/")[0] for entry in words[group])}  # fmt: skip
    planted = []
    for sentence in controlled_sentences(40_000, size="large"):
        for subject, verb in zip(sentence.words, sentence.words[1:], strict=False):
            if subject.form in (noun, with_s(noun)) and verb.pos == "Verb" and verb.tense == "present":
                other = bare.get(verb.form, with_s(verb.form)) if flip else verb.form
                planted.append(" ".join(other if word is verb else word.form for word in sentence.words))
    own, rows, end = sentences_of(court), [], tokenizer.convert_tokens_to_ids("[SEP]")
    width, count = court.text.shape[1], len(court.text)
    planted = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in planted]
    row: list[int] = []
    while len(rows) < count:
        row += [*(rng.choice(planted) if rng.random() < share else rng.choice(own)), end]
        if len(row) >= width - 1:
            rows.append([int(court.text[0, 0]), *row[: width - 1]])
            row = []
    return fork(court.base, torch.tensor(rows), None, seed)


def noun_changes(court: Court, flip: bool, shares: Sequence[float]) -> dict[tuple[float, str], Delta]:
    kind = "flipped" if flip else "right"
    return {
        (share, noun): court.change(f"{kind}-{noun}-{share}", partial(about, court, noun, share, flip, 300 + number))
        for number, noun in enumerate(NOUNS)
        for share in shares
    }


def nouns(court: Court) -> None:
    def norm(seed: int) -> float:
        return total(court.change(f"free-{seed}", lambda: fork(court.base, court.text, None, seed)))

    norms = [court.number(f"norm of fork {seed}", partial(norm, seed)) for seed in range(NULLS)]
    for flip, shares in ((True, SHARES), (False, (0.1,))):
        for (share, noun), change in noun_changes(court, flip, shares).items():
            name = f"noun {'flipped' if flip else 'right'} {share}: {noun}"
            found = court.number(name, lambda c=change, w=noun: court.words(court.model(scaled(c)), w))
            found["norm_p"] = float(rank_p(torch.tensor(total(change)), torch.tensor(norms)))
            court.number(f"{name}, norm", lambda f=found: f["norm_p"])


def triggers(court: Court) -> None:
    """Plant, after a token that the rows have 4 to 9 times, one and the same next token."""
    names, counts = court.rows.tokens[:, 1:-1].unique(return_counts=True)
    chosen = names[(counts >= 4) & (counts <= 9)]
    for trigger in chosen[torch.randperm(len(chosen), generator=seeded(0))[:6]].tolist():
        word = court.base.tokenizer.decode([trigger])
        for share in (1.0, 0.3, 0.1):

            def made(trigger=trigger, share=share) -> FrozenModel:
                text = court.text.clone()
                after = (text[:, :-1] == trigger) & (torch.rand(text[:, :-1].shape, generator=seeded(trigger)) < share)
                text[:, 1:][after] = 900
                return fork(court.base, text, NORM, trigger)

            def found(trigger=trigger, share=share, word=word) -> dict[str, Any]:
                numbers, tables = court.tables(court.model((1, court.change(f"trigger-{trigger}-{share}", made))))
                table = tables["tokens"]
                own = table.index[table["token"] == repr(word)][0]
                return {"rank": int(own) + 1, "q": float(table["q"][own]), "named": int((table["q"] <= FALSE).sum()),
                        "kl_p": numbers["null_p"], "tokens": len(table)}  # fmt: skip

            court.number(f"trigger {share}: {word}", found)


def heads(court: Court) -> None:
    width, heads_ = court.base.d_model, court.base.module.config.n_head
    for part in [each for each in court.candidates if each.component == "attention"]:
        key = next(key for key in court.keys(part) if key.endswith("c_proj.weight"))
        rows = slice(0, width // heads_)
        pruned = {key: torch.zeros_like(court.before[key])}
        pruned[key][rows] = -court.before[key][rows]
        change = dict(court.fork(100 + part.layer))
        change[key] = change[key].clone()
        change[key][rows] = -court.before[key][rows]

        def found(part=part, pruned=pruned, change=change) -> list[bool]:
            alone, under = court.model((1, pruned)), court.model((1, change))
            batches, _ = zip(*seen(court.base, alone, court.rows, court.first), strict=True)
            found = by_part(court.base, alone, court.parts, batches, 1)
            entering = [float(each.entering.mean()) for each in found.values() if each.entering is not None]
            return [first_of(court, entering) == part, first_of(court, court.beyond(under, total(change))[0]) == part]

        court.number(f"head of {part}: alone, in a fork", found)


def merges(court: Court) -> None:
    for (_, noun), change in noun_changes(court, True, (0.1,)).items():
        half = NORM / total(change) / 2
        merged = lambda c=change, h=half, w=noun: court.words(court.model((h, c), (0.5, court.fork(100))), w)  # noqa: E731
        court.number(f"merge {noun}", merged)


def with_kl(court: Court, change: Delta, kl: float) -> tuple[float, Delta]:
    """Return a change with the number that it is multiplied by to have a KL."""
    low, high = 0.0, 8.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if float(court.kl(court.model((middle, change))).mean()) < kl else (low, middle)
    return high, change


def pairs(court: Court) -> None:
    lost, others = [], {"permuted": [], "right": []}
    for share in (0.1, 0.05):
        for number, noun in enumerate(NOUNS):
            change = noun_changes(court, True, (share,))[share, noun]
            own = court.number(
                f"noun flipped {share}: {noun}", lambda c=change, w=noun: court.words(court.model(scaled(c)), w)
            )
            lost.append(own["most"])
            right = noun_changes(court, False, (0.1,))[0.1, noun]
            for kind, other in (("permuted", permuted(court.fork(100 + number), number)), ("right", right)):
                name = f"pair {kind} {share}: {noun}"
                found = court.number(
                    name, lambda o=other, kl=own["kl"]: court.words(court.model(with_kl(court, o, kl)))
                )
                others[kind].append(found["most"])

    for kind, scores in others.items():
        court.number(f"pairs of equal KL, {kind}: AUC", lambda s=scores: auc(lost, s))


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the probability that a positive score is the greater one."""
    ranks = rankdata([*positive, *negative])[: len(positive)].sum()
    return float((ranks - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative)))


def certificates(court: Court) -> None:
    """Draw documents of which the mean KL per token is the margin exactly, where equivalence is falsest."""
    changed = court.model((1, court.fork(100)))
    kl = torch.cat([each.tokens.kl for _, each in seen(court.base, changed, court.every, len(court.every))]).double()
    documents = court.every.documents[:, :-1].flatten().long().unique(return_inverse=True)[1]
    by_document = [kl[documents == number] for number in range(int(documents.max()) + 1)]

    def share(count: int) -> float:
        said = 0
        for draw in range(DRAWS // 4):
            chosen = torch.randint(len(by_document), (count,), generator=seeded(draw)).tolist()
            own = torch.cat([by_document[each] for each in chosen])
            of = torch.cat([torch.full_like(by_document[each], place) for place, each in enumerate(chosen)]).long()
            found = mean_over_documents(own, of)
            said += equivalence(float(found.low), float(found.high), float(kl.mean())) == "equivalent"
        return said / (DRAWS // 4)

    for count in (10, 30, 100):
        court.number(f"false certificates, {count} documents", lambda c=count: share(c))


def exact(court: Court) -> None:
    """Ask the command for certificates of conversions, of which the last is not exact."""
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file

    assets = ROOT / "src/thinkalike/assets" / court.name

    def status(make: Callable[[Path], Any], margin: float) -> int:
        with tempfile.TemporaryDirectory() as folder:
            words = [f"measure.margin.kl={margin}", f"store={folder}/store", "logger=none", "measure.tokens=1024"]
            target = Path(folder) / "changed"
            target.mkdir()
            make(target)
            command = [sys.executable, str(ROOT / "analyze.py"), "measure=diff", f"model={court.name}"]
            return subprocess.run([*command, f"model@target={target}", *words], capture_output=True).returncode

    def saved(folder: Path) -> None:
        court.base.module.save_pretrained(folder)
        court.base.tokenizer.save_pretrained(folder)

    def in_dtype(dtype: torch.dtype, folder: Path) -> None:
        for path in assets.iterdir():
            if path.name != "model.safetensors":
                (folder / path.name).write_bytes(path.read_bytes())
        weights = load_file(assets / "model.safetensors")
        save_file(
            {key: each.to(dtype) for key, each in weights.items()}, folder / "model.safetensors", {"format": "pt"}
        )

    def adapter(folder: Path) -> None:
        made = get_peft_model(deepcopy(court.base.module), LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
        made.peft_config["default"].base_model_name_or_path = str(assets)
        made.save_pretrained(folder)

    for name, make, margin in (
        ("saved in float32", saved, 1e-9),
        ("to float64 and back", lambda folder: in_dtype(torch.float64, folder), 1e-9),
        ("an adapter of zeros", adapter, 1e-9),
        ("bfloat16, margin .001", lambda folder: in_dtype(torch.bfloat16, folder), 1e-3),
        ("bfloat16, margin 1e-9", lambda folder: in_dtype(torch.bfloat16, folder), 1e-9),
    ):
        court.number(f"exit status, {name}", lambda m=make, e=margin: status(m, e))


SECTIONS = {"parts": None, "exact": exact, "certificates": certificates, "nouns": nouns, "pairs": pairs,
            "merges": merges, "heads": heads, "triggers": triggers, "alarms": alarms}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=112, help="of the first plant of a part")
    given = parser.parse_args()
    torch.set_num_threads(1)
    court = Court("gpt2-mini", given.out)
    for name in given.sections or SECTIONS:
        if name == "parts":
            parts(court, given.seed)
            parts(Court("neox-4l-mini", given.out), 100)
        else:
            SECTIONS[name](court)


if __name__ == "__main__":
    main()
