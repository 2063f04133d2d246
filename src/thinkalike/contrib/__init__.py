"""What serves one paper or one kind of study; the core finds it by its registry, and works without it."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"  # configuration groups, which Hydra finds beside those of the core
