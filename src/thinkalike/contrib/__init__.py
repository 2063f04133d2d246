"""What serves one paper or one kind of study; the core finds it by `registry`."""

from pathlib import Path

# Configuration groups, which Hydra finds beside those of the core.
CONF = Path(__file__).parent / "conf"
