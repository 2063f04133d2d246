"""The architectures of transformers that docs/reference/architectures.md lists."""

from pages import DOCS, script

PAGE = (DOCS / "reference" / "architectures.md").read_text().splitlines()
make_models = script("make_models")
KNOWN = make_models.architectures()
