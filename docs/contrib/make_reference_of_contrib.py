"""Write the reference of what contrib adds to the settings and to the names of groups.

python docs/contrib/make_reference_of_contrib.py
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from thinkalike.config import MEASURES, TASKS, ModelConfig
from thinkalike.contrib import CONF
from thinkalike.contrib.populations.config import NumberedModel
from thinkalike.contrib.pretraining.settings import PretrainedModel

HERE = Path(__file__).parent
TASK_OF = {"nli": "nli", "sae": "sae"}  # the tasks whose recipes decide the defaults of a part

SETTINGS = """# Settings of contrib

Which settings do the instruments of contrib add? `python docs/contrib/make_reference_of_contrib.py` makes this page.
[Settings](../reference/settings.md) has the settings of the core, and explains how to read the tables.

{sections}
"""

NAMES = """# Names of contrib

Which names does contrib add? `python docs/contrib/make_reference_of_contrib.py` makes this page from
`src/thinkalike/contrib/conf/`. [Names](../reference/names.md) has those of the core.

{sections}
"""


def core() -> ModuleType:
    """Return the script that makes the reference of the core."""
    spec = importlib.util.spec_from_file_location("make_reference", HERE.parent / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules["make_reference"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def settings() -> str:
    """Return the text of the page of settings."""
    made = core()
    known = {item.name for item in dataclasses.fields(ModelConfig)}
    sections = []
    for schema in (PretrainedModel, NumberedModel):
        rows = [row for row in made.rows_of(schema, "model.") if row[0].strip("`").removeprefix("model.") not in known]
        sections.append(made.section(f"`model`, of {schema.__name__}", rows, inspect.getdoc(schema) or ""))
    instruments = [*TASKS.values(), *MEASURES.values()]
    of_core = made.parts_of(instruments, of_contrib=False)
    parts = made.parts_of(instruments, of_contrib=True)
    for name in sorted(parts.keys() - of_core.keys()):
        sections.append(made.part_section(name, parts[name], TASK_OF.get(name)))
    for title, rows in made.measure_tables(of_contrib=True).items():
        sections.append(made.section(title, rows))
    return SETTINGS.format(sections="\n\n".join(sections))


def names() -> str:
    """Return the text of the page of options of all groups."""
    groups = sorted({file.relative_to(CONF).parts[0] for file in CONF.glob("*/**/*.yaml")})
    return NAMES.format(sections=core().tables_of_options(CONF, groups))


PAGES = {"settings.md": settings, "names.md": names}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
