"""Regular expressions of a checkpoint are tried before a library matches them without end.

A pattern of an adapter can ask for years of matching. Nothing here imports torch or transformers.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Collection

from thinkalike.errors import ModelError

# The seconds of matching, of which patterns that people write take less than a thousandth.
MOST_SECONDS = 5.0

# The bytes of the process that matches.
MOST_BYTES = 2**30

# What runs in a process of its own: Python's matching cannot be interrupted from within, but a
# process can be ended. The limit of processor time holds even if nobody is left to end it. The
# three forms are those in which peft matches the patterns of its settings.
MATCHING = f"""
import json, re, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({MOST_BYTES}, {MOST_BYTES}))
    resource.setrlimit(resource.RLIMIT_CPU, ({MOST_SECONDS:.0f}, {MOST_SECONDS:.0f}))
except ImportError:
    pass
patterns, names = json.load(sys.stdin)
for pattern in patterns:
    for form in (pattern, rf"(.*\\.)?({{pattern}})$", rf".*\\.{{pattern}}\\.(\\d+)\\."):
        try:
            compiled = re.compile(form)
        except (re.error, OverflowError):
            continue
        for name in names:
            compiled.fullmatch(name)
            compiled.match(name)
"""


def check_patterns(patterns: Collection[str], names: Collection[str], stated_in: str) -> None:
    """Raise a ModelError if regular expressions take longer than `MOST_SECONDS` to match.

    Matching cannot be interrupted inside a process, so it is tried in a separate one, which is
    ended after that time. A pattern that is no regular expression is ignored here; the library
    that uses it reports it.

    Args:
        patterns: The regular expressions.
        names: The texts that they will be matched against.
        stated_in: The file that states the patterns, for the message.
    """
    if not patterns:
        return
    patterns_and_names = json.dumps([list(patterns), list(names)])
    with contextlib.suppress(subprocess.TimeoutExpired):
        process = subprocess.run(
            # MATCHING is a short program. -I and -S: it can import only the standard library.
            [sys.executable, "-I", "-S", "-c", MATCHING],
            input=patterns_and_names,
            text=True,
            timeout=MOST_SECONDS,
            capture_output=True,
        )
        if process.returncode == 0:
            return
    beginning_of_patterns = ", ".join(patterns)[:100]
    raise ModelError(
        f"{stated_in} has a pattern that cannot be matched within {MOST_SECONDS:.0f} seconds "
        f"({beginning_of_patterns}); list the names of modules instead"
    )
