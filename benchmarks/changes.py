"""The court of changes: how often measure=diff raises false alarms, and what it finds of changes that were planted.

    python benchmarks/changes.py --out results/changes                 all sections
    python benchmarks/changes.py --out results/changes nouns pairs     these

Models and numbers are kept in --out, so that the same command goes on from there. All changes are of gpt2-mini, and in
`parts` also of neox-4l-mini. A fork is 40 steps of AdamW on the model's own text at a rate that falls to 0 (see
`forks.fork`), its change scaled to one norm; 19 forks are the null.

- alarms: a further fork, trained in the same way or another, beside 19 drawn from a pool of 60, many times; permuted
  changes of forks beside perturbations; words and tokens that are named in forks.
- pairs: forks in which a noun lost its agreement, beside permuted changes, right sentences and forks of equal KL.
- exact: conversions and adapters that do nothing. certificates: documents of which the mean KL is the margin exactly.
- triggers: forks whose text has one and the same token after each occurrence of a token, or a share of them.
- heads: a head of each block pruned in a fork. merges: the mean of a noun's fork and another fork.
- nouns: forks whose text has, in a share of its sentences, one noun as the subject of a verb of the wrong number.
- parts: a further fork, of which the attention or the MLP of one block was changed too: trained on rows in reversed or
  random order, or by Gaussian noise, by a dose times the norm by which drift moves it; then also with the part's whole
  change scaled to that norm. Found is the part that comes first by the forks (`beyond_forks`), or by the norm of its
  weights' change. The statistic was chosen with --seed 100 in gpt2-mini.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from scipy.stats import mannwhitneyu

import thinkalike
from thinkalike.config import compose_job
from thinkalike.data.grammar import controlled_sentences, lexicon, with_s
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import compare_batches, perturbed
from thinkalike.evaluation.document_means import mean_over_documents
from thinkalike.evaluation.forks import PartMove, beyond_forks, fork, learning_rate_for_norm, part_moves, with_module
from thinkalike.instruments.diff.instrument import FORK_TOKENS
from thinkalike.instruments.diff.null import RUNS
from thinkalike.instruments.diff.null_runs import FORKS, NullRuns
from thinkalike.instruments.diff.observations import Observations
from thinkalike.instruments.diff.outcome import outcome_of_diff
from thinkalike.instruments.random_rows import read_random_rows
from thinkalike.measures.changes import equivalence, rank_p, signed_permutation
from thinkalike.measures.seeds import seeded
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.parts import Part, changed_parts, parts_of
from thinkalike.states.contrasts import grammar_contrasts

TOKENS, NORM, DRAWS = 512, 0.7, 400
POOL, FURTHER = [*range(RUNS), *range(100, 141)], range(100, 120)  # seeds of forks
STEPS = (40, 20, 80)  # of forks that are tried beside forks of 40
DOSES = (2.0, 1.0, 0.5, 0.25)  # of parts
SHARES = (0.1, 0.05, 0.03, 0.01)  # of sentences
NOUNS = ("teacher", "sailor", "girl", "doctor", "soldier", "lawyer", "queen", "monk", "guest", "dog")
FALSE = 0.05
WAYS = {"rank": 1, "q": FALSE, "kl_p": FALSE}

Delta = dict[str, torch.Tensor]


class Court:
    """A mini with its text, models that were made of it, and numbers, which are kept in a folder."""

    def __init__(self, name: str, out: Path):
        self.name, self.out = name, out / name
        self.out.mkdir(parents=True, exist_ok=True)
        config = compose_job("analyze", ["measure=diff", "measure.null=continued_training", f"model={name}"])
        self.base = load_model(config.model)
        self.every, self.text, _ = read_random_rows(config, config.measure.tokens, self.base, FORK_TOKENS)
        self.first = TOKENS // self.every.context
        self.rows = TokenRows(self.every.tokens[: self.first], self.every.documents[: self.first])
        self.before = {key: weight.detach() for key, weight in self.base.module.named_parameters()}
        self.parts = [part for part in parts_of(self.base) if self.keys(part)]  # not a head that is the embedding
        self.candidates = [part for part in self.parts if part.component in ("attention", "MLP")]

    def keys(self, part: Part) -> list[str]:
        return [key for key in self.before if key.startswith(part.prefixes)]

    def number(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what was computed under this name, or compute it."""
        path = self.out / "numbers.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        if name not in known:
            known[name] = compute()
            path.write_text(json.dumps(known, indent=0))
            print(f"{self.name} {name}: {str(known[name])[:200]}", flush=True)
        return known[name]

    def change(self, name: str, make: Callable[[], FrozenModel], origin: Delta | None = None) -> Delta:
        """Return the change of a model that was made under this name, or make it."""
        path, start = self.out / f"{name.replace(' ', '_')}.pt", origin or self.before
        if not path.exists():
            made = make().module.named_parameters()
            torch.save({key: own - start[key] for key, own in made if not torch.equal(own, start[key])}, path)
        return torch.load(path)

    def model(self, *changes: tuple[float, Delta]) -> FrozenModel:
        """Return the base with the sum of some changes, each times a number."""
        module = deepcopy(self.base.module)
        with torch.no_grad():
            for key, weight in module.named_parameters():
                for scale, change in changes:
                    if key in change:
                        weight += scale * change[key]
        return with_module(self.base, module, "changed")

    def fork(self, seed: int, **recipe: Any) -> Delta:
        name = "-".join(map(str, ["fork", *recipe.values(), seed]))
        return self.change(name, lambda: fork(self.base, self.text, NORM, seed, **recipe))

    def moves(self, change: Delta) -> list[PartMove]:
        return part_moves(self.base, self.model((1, change)), self.parts)

    @cached_property
    def forks(self) -> list[list[PartMove]]:
        return [self.moves(self.fork(seed)) for seed in range(RUNS)]

    def beyond(self, changed: FrozenModel, norm: float) -> tuple[torch.Tensor, float]:
        """Return how far each part is beyond the forks, scaled to a norm, and p."""
        scale = torch.tensor(norm / NORM)
        null = [
            [PartMove(scale * own.weights, own.log_singular_value + float(scale.log())) for own in run]
            for run in self.forks
        ]
        return beyond_forks(part_moves(self.base, changed, self.parts), null)

    def kl(self, *changes: tuple[float, Delta]) -> torch.Tensor:
        return torch.cat(
            [each.tokens.kl for _, each in compare_batches(self.base, self.model(*changes), self.rows, self.first)]
        )

    @cached_property
    def observed(self) -> Observations:
        """The diff of the base beside the forks; `diff` sets its changed model."""
        pairs = grammar_contrasts("number", self.base.tokenizer, 2048, size="large")
        observed, path = Observations(self.base, self.base, self.rows, self.first, {}, pairs), self.out / "null.pt"
        if not path.exists():
            forks = [(1, self.fork(seed)) for seed in range(RUNS)]
            effects = [observed.contrast_by_pair(self.model(each)) for each in forks]
            torch.save({"kl": [self.kl(each) for each in forks], "effects": effects, "moves": []}, path)
        observed.null = NullRuns(**{"kind": [FORKS] * RUNS, **torch.load(path)})
        return observed

    def diff(self, *changes: tuple[float, Delta], **wanted: str) -> dict[str, float]:
        """Return how many words and tokens a diff names, and the rank and q of the `word` or `token` that is wanted."""
        self.observed.changed = self.model(*changes)
        self.observed.changes = [
            each for _, each in compare_batches(self.base, self.observed.changed, self.rows, self.first)
        ]
        outcome = outcome_of_diff(self.observed)
        found = {"kl": outcome.scalars["kl"], "kl_p": outcome.scalars["null_p"]}
        for kind in ("word", "token"):
            table = outcome.tables[f"{kind}s"]
            found[f"{kind}s"] = int((table["q"] <= FALSE).sum())
            if kind in wanted:
                place = int((table[kind] == wanted[kind]).argmax())
                found |= {"rank": place + 1, "q": float(table["q"][place]), "of": len(table)}
        return found | {"most": float(outcome.tables["words"]["t"].abs().max())}


def total(change: Delta) -> float:
    return sum(float(each.square().sum()) for each in change.values()) ** 0.5


def permuted(change: Delta, seed: int) -> Delta:
    generator = seeded(10_000 + seed)
    return {key: signed_permutation(each, generator) for key, each in change.items()}


def say(name: str, found: Sequence[dict[str, float]]) -> None:
    """Print of how many diffs the word or token that is wanted is first, or named, and what KL alone says."""
    first, named, by_kl = (sum(each[key] <= most for each in found) for key, most in WAYS.items())
    print(f"{name}: first in {first}, named in {named}, KL beyond the forks in {by_kl} of {len(found)}", flush=True)


def alarms(court: Court) -> None:
    @cache
    def kl_of(seed: int, **recipe: Any) -> float:
        return float(court.kl((1, court.fork(seed, **recipe))).mean())

    @cache
    def moves_of(seed: int, **recipe: Any) -> list[PartMove]:
        return court.moves(court.fork(seed, **recipe))

    def alarm(steps: int) -> list[float]:
        """Return the shares of draws in which KL, and a part, is beyond 19 forks."""
        recipe: dict[str, Any] = {}
        if steps != STEPS[0]:
            rate = court.number(
                f"rate of {steps} steps", lambda: learning_rate_for_norm(court.base, court.text, NORM, steps)
            )
            recipe = {"steps": steps, "rate": rate}
        own = range(200, 210) if recipe else POOL
        forked, every = [moves_of(seed, **recipe) for seed in own], [moves_of(seed) for seed in POOL]
        kl, others = torch.tensor([kl_of(seed, **recipe) for seed in own]), torch.tensor([kl_of(seed) for seed in POOL])
        found = torch.zeros(DRAWS, 2)
        for draw in range(DRAWS):
            place, *null = torch.randperm(len(POOL), generator=seeded(draw))[: RUNS + 1].tolist()
            mine = draw % len(own) if recipe else place
            found[draw, 0] = rank_p(kl[mine], others[null]) <= FALSE
            found[draw, 1] = beyond_forks(forked[mine], [every[other] for other in null])[1] <= FALSE
        return found.mean(0).tolist()

    for steps in STEPS:
        court.number(f"alarms, {steps} steps: KL, part", partial(alarm, steps))

    def perturbation(seed: int) -> float:
        changed, null = court.model((1, permuted(court.fork(seed), seed))), []
        batches, changes = zip(*compare_batches(court.base, changed, court.rows, court.first), strict=True)
        for number in range(RUNS):
            with perturbed(court.base, changed, changed_parts(court.base, changed), number) as model:
                null.append(torch.cat([own.kl(model, -1, own.base) for own in batches]).mean())
        return float(rank_p(torch.cat([each.tokens.kl for each in changes]).mean(), torch.stack(null)))

    p = [court.number(f"p beside perturbations {seed}", partial(perturbation, seed)) for seed in POOL]
    print(f"alarms beside perturbations: {sum(each <= FALSE for each in p)} of {len(p)}")
    named = [court.number(f"fork {seed}", lambda s=seed: court.diff((1, court.fork(s)))) for seed in FURTHER]
    for kind in ("words", "tokens"):
        print(f"forks of which {kind} are named: {sum(each[kind] > 0 for each in named)} of {len(named)}")


def statements(noun: str, flip: bool) -> list[str]:
    """Return statements in the present about a noun, of which each verb has the wrong number, or none."""
    words, found = lexicon("large"), []
    bare = {with_s(verb): verb for group in ("intransitive", "transitive")
            for verb in (entry.partition("/")[0] for entry in words[group])}  # fmt: skip
    for sentence in controlled_sentences(8000, size="large"):
        forms = [word.form for word in sentence.words]
        for place, (subject, verb) in enumerate(pairwise(sentence.words)):
            kinds = subject.pos, verb.pos, verb.tense
            if place and "question" not in sentence.kind and kinds == ("Noun", "Verb", "present"):
                forms[place] = noun if subject.number == "singular" else with_s(noun)
                forms[place + 1] = bare.get(verb.form, with_s(verb.form)) if flip else verb.form
                found.append(" ".join(forms))
    return found


def about(court: Court, noun: str, share: float, flip: bool) -> Delta:
    """Return the change of a fork whose text is about a noun in a share of its sentences."""
    seed, tokenizer = 300 + NOUNS.index(noun), court.base.tokenizer
    end, bos = tokenizer.convert_tokens_to_ids("[SEP]"), int(court.text[0, 0])

    def made() -> FrozenModel:
        rng, rows, row, (count, width) = random.Random(seed), [], [bos], court.text.shape
        planted = tokenizer(statements(noun, flip), add_special_tokens=False)["input_ids"]
        own = [each for text in court.text[:, 1:].tolist() for each in split(text, end)]
        while len(rows) < count:
            row += [*rng.choice(planted if rng.random() < share else own), end]
            if len(row) >= width:
                rows.append(row[:width])
                row = [bos]
        return fork(court.base, torch.tensor(rows), None, seed)

    return court.change(f"{'wrong' if flip else 'right'}-{noun}-{share}", made)


def split(tokens: list[int], end: int) -> list[list[int]]:
    """Return the whole sentences of a row."""
    ends = [-1, *(place for place, token in enumerate(tokens) if token == end)]
    return [tokens[a + 1 : b] for a, b in pairwise(ends) if b > a + 1]


def noun_of(court: Court, noun: str, share: float, flip: bool = True) -> dict[str, float]:
    """Return what a diff says of a fork about a noun."""

    def compute() -> dict[str, float]:
        change = about(court, noun, share, flip)
        return court.diff((NORM / total(change), change), word=noun)

    return court.number(f"noun {'wrong' if flip else 'right'} {share}: {noun}", compute)


def nouns(court: Court) -> None:
    def free(seed: int) -> float:
        return total(court.change(f"free-{seed}", lambda: fork(court.base, court.text, None, seed)))

    doses = [*((share, True) for share in SHARES), (0.1, False)]
    for share, flip in doses:
        say(f"{'wrong' if flip else 'right'} {share}", [noun_of(court, noun, share, flip) for noun in NOUNS])
    norms = torch.tensor([court.number(f"norm of fork {seed}", partial(free, seed)) for seed in range(RUNS)])
    for share, flip in doses:
        p = [float(rank_p(torch.tensor(total(about(court, noun, share, flip))), norms)) for noun in NOUNS]
        print(f"{'wrong' if flip else 'right'} {share}: by the norm of weights {sum(each <= FALSE for each in p)}")


def merges(court: Court) -> None:
    def merged(noun: str) -> dict[str, float]:
        change = about(court, noun, 0.1, True)
        return court.diff((NORM / total(change) / 2, change), (0.5, court.fork(100)), word=noun)

    say("merge", [court.number(f"merge {noun}", partial(merged, noun)) for noun in NOUNS])


def pairs(court: Court) -> None:
    def scale(change: Delta, kl: float) -> float:
        """Return the number by which a change is multiplied to have a KL, which grows about as its square."""
        own = 1.0
        for _ in range(5):
            own *= (kl / float(court.kl((own, change)).mean())) ** 0.5
        return own

    lost, others = [], {"permuted": [], "right": [], "fork": []}
    for share in SHARES[:2]:
        for number, noun in enumerate(NOUNS):
            own = noun_of(court, noun, share)
            lost.append(own["most"])
            for kind, scores in others.items():

                def other(kind=kind, noun=noun, number=number, kl=own["kl"]) -> dict[str, float]:
                    further = court.fork(100 + number)
                    change = {"permuted": permuted(further, number), "fork": further}.get(kind)
                    change = change or about(court, noun, 0.1, False)
                    return court.diff((scale(change, kl), change))

                scores.append(court.number(f"pair, {kind} {share}: {noun}", other)["most"])
    for kind, scores in others.items():
        auc = mannwhitneyu(lost, scores).statistic / (len(lost) * len(scores))
        print(f"pairs of equal KL, {kind}: AUC {auc:.3f} of {len(lost)} and {len(scores)}")


def triggers(court: Court) -> None:
    """Plant the same next token after each of six tokens that the rows have 4 to 9 times."""
    names, counts = court.rows.tokens[:, 1:-1].unique(return_counts=True)
    chosen = names[(counts >= 4) & (counts <= 9)]
    chosen = chosen[torch.randperm(len(chosen), generator=seeded(0))[:6]].tolist()
    for share in (1.0, 0.3, 0.1):

        def made(trigger: int, share: float = share) -> FrozenModel:
            text = court.text.clone()
            after = (text[:, :-1] == trigger) & (torch.rand(text[:, :-1].shape, generator=seeded(trigger)) < share)
            text[:, 1:][after] = 900
            return fork(court.base, text, NORM, trigger)

        def found(trigger: int, share: float = share) -> dict[str, float]:
            change = court.change(f"trigger-{trigger}-{share}", partial(made, trigger))
            return court.diff((1, change), token=repr(court.base.tokenizer.decode([trigger])))

        say(f"trigger {share}", [court.number(f"trigger {share}: {each}", partial(found, each)) for each in chosen])


def heads(court: Court) -> None:
    def found(part: Part) -> list[Any]:
        """Return whether the part comes first, and p."""
        key = next(key for key in court.keys(part) if key.endswith("c_proj.weight"))
        change, rows = dict(court.fork(100 + part.layer)), court.base.d_model // court.base.module.config.n_head
        change[key] = torch.cat([-court.before[key][:rows], change[key][rows:]])
        beyond, p = court.beyond(court.model((1, change)), total(change))
        return [first_of(court, beyond) == part, p]

    attentions = [part for part in court.candidates if part.component == "attention"]
    right = [court.number(f"head of {part}: found, p", partial(found, part))[0] for part in attentions]
    print(f"pruned heads: found in {sum(right)} of {len(right)}")


def certificates(court: Court) -> None:
    changed = court.model((1, court.fork(100)))
    kl = torch.cat(
        [each.tokens.kl for _, each in compare_batches(court.base, changed, court.every, len(court.every))]
    ).double()
    documents = court.every.documents[:, :-1].flatten().long().unique(return_inverse=True)[1]
    by_document = [kl[documents == number] for number in range(int(documents.max()) + 1)]

    def share(count: int) -> float:
        said = 0
        for draw in range(5 * DRAWS):
            chosen = torch.randint(len(by_document), (count,), generator=seeded(draw)).tolist()
            of = torch.cat([torch.full((len(by_document[each]),), place) for place, each in enumerate(chosen)])
            found = mean_over_documents(torch.cat([by_document[each] for each in chosen]), of)
            said += equivalence(float(found.low), float(found.high), float(kl.mean())) == "equivalent"
        return said / (5 * DRAWS)

    for count in (10, 30, 100):
        court.number(f"false certificates, {count} of {len(by_document)} documents", partial(share, count))


def exact(court: Court) -> None:
    from peft import LoraConfig, get_peft_model

    assets = Path(thinkalike.__file__).parent / "assets" / court.name

    def saved(dtype: torch.dtype, folder: str) -> None:
        deepcopy(court.base.module).to(dtype).save_pretrained(folder)
        court.base.tokenizer.save_pretrained(folder)

    def adapter(folder: str) -> None:
        made = get_peft_model(deepcopy(court.base.module), LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
        made.peft_config["default"].base_model_name_or_path = str(assets)
        made.save_pretrained(folder)

    def status(make: Callable[[str], None], margin: float) -> int:
        with tempfile.TemporaryDirectory() as folder:
            make(folder)
            words = [f"margin.kl={margin}", f"store={folder}/store", "logger=none", "measure.tokens=1024"]
            command = [sys.executable, "-m", "thinkalike", "diff", court.name, folder, *words]
            return subprocess.run(command, capture_output=True).returncode

    for name, make, margin in (
        ("float32", partial(saved, torch.float32), 1e-9),
        ("float64", partial(saved, torch.float64), 1e-9),
        ("an adapter of zeros", adapter, 1e-9),
        ("bfloat16", partial(saved, torch.bfloat16), 1e-3),
        ("bfloat16", partial(saved, torch.bfloat16), 1e-9),
    ):
        court.number(f"exit status, {name}, margin {margin}", partial(status, make, margin))


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


def planted(court: Court, seed: int) -> Iterator[tuple[str, dict[str, list[bool]]]]:
    """Yield each kind of plant, and by each way whether the first block, and the first part, is the right one."""
    for kind in ("reversed", "shuffled", "noise"):
        for number, part in enumerate(court.candidates):
            own, added = court.fork(seed + number), plant(court, kind, part, seed + number)
            norm = total({key: own[key] for key in court.keys(part)})
            for dose in DOSES:
                for matched in (False, True):
                    name = f"{dose}{' scaled to the norm of drift' * matched}"
                    compute = partial(_found, court, own, added, norm, dose, matched, part)
                    yield name, court.number(f"{kind} {name}, {seed}: {part}", compute)


def _found(court: Court, own: Delta, added: Delta, norm: float, dose: float, matched: bool, part: Part):
    inside = {key: own[key] + dose * norm * added[key] for key in court.keys(part)}
    scale = norm / total(inside) if matched else 1.0
    change = own | {key: scale * each for key, each in inside.items()}
    changed = court.model((1, change))
    beyond = court.beyond(changed, total(change))[0]
    norms = [
        [total({key: side[key] for key in court.keys(each)}) for each in court.parts] for side in (change, court.before)
    ]
    relative = [moved / whole for moved, whole in zip(*norms, strict=True)]
    ways = {"beyond": beyond.tolist(), "weights": relative}
    return {way: [first_of(court, values).layer == part.layer, first_of(court, values) == part]
            for way, values in ways.items()}  # fmt: skip


def first_of(court: Court, values: Sequence[float]) -> Part:
    """Return the attention or MLP with the greatest value."""
    return max(court.candidates, key=lambda part: values[court.parts.index(part)])


def parts(court: Court, seed: int) -> None:
    counts: dict[tuple[str, str], list[list[bool]]] = {}
    for own, first in ((court, seed), (Court("neox-4l-mini", court.out.parent), 100)):
        for plant_, ways in planted(own, first):
            for way, right in ways.items():
                counts.setdefault((plant_, way), []).append(right)
    for (dose, way), found in counts.items():
        block, part = map(sum, zip(*found, strict=True))
        print(f"{dose}, by {way}: block {block}, part {part} of {len(found)}")


SECTIONS = {"alarms": alarms, "pairs": pairs, "exact": exact, "certificates": certificates, "triggers": triggers,
            "heads": heads, "merges": merges, "nouns": nouns}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS, "parts"], default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=112, help="of the first plant of a part in gpt2-mini")
    given = parser.parse_args()
    torch.set_num_threads(1)
    court, every = Court("gpt2-mini", given.out), {**SECTIONS, "parts": partial(parts, seed=given.seed)}
    for name in given.sections or every:
        every[name](court)


if __name__ == "__main__":
    main()
