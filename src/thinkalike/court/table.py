"""The sources of a court: a line each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from thinkalike.court import leaks, models, parts, same, tokens
from thinkalike.court.source import Setting, Source, States

KINDS = {
    "same": "the target itself in other coordinates, or as good as itself",
    "answers": "what the target predicts, and not its states",
    "part": "a part of the target's states, or another stage of them",
    "superset": "the target's states, and much else",
    "token": "the current token or the last two, and nothing else of the context",
    "leak": "the next token, which the target cannot know",
    "untrained": "the target's architecture without its training",
    "shortcut": "trained, but to answer from the current token alone",
    "real": "another model that was trained on the same text",
    "dose": "a known share of the target's own variance, the rest from the same token elsewhere",
}


class Entry(NamedTuple):
    """A source before it is made: its name, its kind, and what makes its states."""

    name: str
    kind: str
    make: Callable[[Setting], States]

    def made(self, setting: Setting) -> Source:
        """Return the source in a setting."""
        return Source(self.name, self.kind, self.make(setting), setting.target)


SOURCES = (
    Entry("rotated", "same", same.rotated),
    Entry("rescaled and permuted", "same", same.rescaled),
    Entry("affine", "same", same.through_affine),
    Entry("noisy weights", "same", same.with_noisy_weights),
    Entry("trained on", "same", same.trained_on),
    Entry("noisy states", "same", same.with_noisy_states),
    Entry("log-probabilities", "answers", parts.log_probabilities),
    Entry("top components", "part", parts.top_components),
    Entry("layer before", "part", parts.layer_before),
    Entry("layer after", "part", parts.layer_after),
    Entry("superset", "superset", parts.superset),
    Entry("token mean", "token", tokens.token_means),
    Entry("bigram mean", "token", tokens.bigram_means),
    Entry("token code", "token", tokens.token_code),
    Entry("bigram code", "token", tokens.bigram_code),
    Entry("other context", "token", tokens.other_context),
    Entry("Gaussian given the token", "token", tokens.gaussian),
    Entry("next token", "leak", leaks.next_token),
    Entry("next token, half of the tokens", "leak", leaks.half_of_the_tokens),
    Entry("next token, half of the variance", "leak", leaks.half_of_the_variance),
    Entry("fresh weights", "untrained", models.fresh_weights),
    Entry("redrawn matrices", "untrained", models.redrawn_matrices),
    Entry("token alone", "shortcut", models.token_alone),
    *(
        Entry(f"{share} % own", "dose", partial(tokens.mixture, share=share / 100))
        for share in (0, 20, 40, 60, 80, 100)
    ),
)


def entries(setting: Setting) -> list[Entry]:
    """Return all sources that can be made in a setting: those of the table, and the siblings that it names."""
    return [*SOURCES, *(Entry(name, "real", partial(models.sibling, name=name)) for name in setting.siblings)]
