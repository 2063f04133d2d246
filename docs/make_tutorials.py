"""Make notebooks of the tutorials and of the questions, and put what their cells give under them.

python docs/make_tutorials.py                    the notebooks, without outputs: seconds
python docs/make_tutorials.py --run [NAME ...]   run them, too, and write what they give into the pages: minutes

Such a page is Markdown (docs/tutorials/*.md, docs/questions/*.md). Its ```python blocks are the cells of the
notebook; a ```text block or a picture right below one is what the cell gives, and is written here. Tutorials run
offline on bundled models. Questions are about the real models that `python docs/make_real_models.py fetch` gets.
"""

from __future__ import annotations

import base64
import io
import posixpath
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TUTORIALS = HERE / "tutorials"
QUESTIONS = HERE / "questions"
PAGES = {
    page.stem: page
    for folder in (TUTORIALS, QUESTIONS)
    for page in sorted(folder.glob("*.md"))
    if page.stem != "README"
}
CELL = re.compile(r"```python\n(.*?)```\n(?:\n```text\n.*?```\n|\n(!\[[^\]]*\]\(([^)]+)\))\n)?", re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")  # to a file of the repository
WIDTH = 100  # columns of a block of code that a page shows whole; tables are narrower
TIMEOUT = 3600  # seconds of a cell, on a busy machine
INSTALL = """\
# on Colab, and wherever thinkalike is not there yet
import importlib.util

if importlib.util.find_spec("thinkalike") is None:
    %pip install -q git+https://github.com/thinkalike/thinkalike"""


# A notebook cuts the margins of figures off, so that each would have a width of its own on a page.
KEEP_MARGINS = "%config InlineBackend.print_figure_kwargs = {'bbox_inches': None}"


def notebook_file(page: Path) -> Path:
    """Return the file of the notebook of a page."""
    return page.parent / "notebooks" / f"{page.stem}.ipynb"


def notebook(page: Path) -> Any:
    """Return a page as a notebook without outputs; its first cell installs what is missing."""
    import jupytext
    import nbformat

    text = CELL.sub(lambda cell: f"```python\n{cell[1]}```\n", page.read_text())
    made = jupytext.reads(_with_links_to_the_repository(text, page), fmt="md")
    made.cells.insert(1, nbformat.v4.new_code_cell(INSTALL))
    for number, cell in enumerate(made.cells):
        cell["id"] = f"{page.stem}-{number}"  # jupytext draws them at random
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return made


def _with_links_to_the_repository(text: str, page: Path) -> str:
    """Return the text of a page whose links lead to the repository, as a notebook is read elsewhere."""

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", page.parent.name, found[1]))
        return f"](https://github.com/thinkalike/thinkalike/blob/main/{path})"

    return LINK.sub(link, text)


def written(made: Any) -> str:
    """Return the text of the file of a notebook."""
    import nbformat

    return nbformat.writes(made) + "\n"


def run(made: Any) -> Any:
    """Run a notebook in a folder of its own, and return it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    made.cells.insert(0, nbformat.v4.new_code_cell(KEEP_MARGINS))
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(made, timeout=TIMEOUT, kernel_name="python3", resources=where).execute()
    del made.cells[0]
    return made


def given(cell: Any) -> dict[str, str]:
    """Return what a cell that ran shows: its picture in base64, else the text of its value, else what it prints."""
    values = [each.data for each in cell.outputs if each.output_type in ("execute_result", "display_data")]
    printed = [each.text for each in cell.outputs if each.output_type == "stream" and each.name == "stdout"]
    if printed:
        values.append({"text/plain": "".join(printed)})
    found = [{kind: value[kind]} for kind in ("image/png", "text/plain") for value in values if kind in value]
    return found[0] if found else {}


def small(picture: bytes) -> bytes:
    """Return a PNG in its 256 most frequent colours, which takes a third of the bytes."""
    from PIL import Image

    written = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


def wrapped(text: str) -> list[str]:
    """Return the lines of a text as a page shows them: long sentences are broken, as a block of code does not wrap."""
    lines = []
    for line in text.splitlines():
        if len(line) <= WIDTH:
            lines.append(line.rstrip())
        else:
            lines += textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def page_with(page: Path, values: Sequence[dict[str, str]]) -> str:
    """Return the text of a page with what its cells give; pictures are written where it shows them."""
    left = iter(values)

    def cell(found: re.Match[str]) -> str:
        value, code = next(left), f"```python\n{found[1]}```\n"
        if found[2] and "image/png" in value:
            (page.parent / found[3]).write_bytes(small(base64.b64decode(value["image/png"])))
            return f"{code}\n{found[2]}\n"
        lines = "".join(f"{line}\n" for line in wrapped(value.get("text/plain", "")))
        return f"{code}\n```text\n{lines}```\n" if lines else code

    return CELL.sub(cell, page.read_text())


def values_of(made: Any) -> list[dict[str, str]]:
    """Return what the cells of a notebook that ran give, without the one that installs."""
    return [given(cell) for cell in made.cells if cell.cell_type == "code" and cell.source != INSTALL]


def main(words: Sequence[str]) -> None:
    """Write the notebooks, and with --run the pages too."""
    for name in words[1:] or PAGES:
        page = PAGES[name]
        notebook_file(page).parent.mkdir(exist_ok=True)
        if words[:1] == ["--run"]:
            page.write_text(page_with(page, values_of(run(notebook(page)))))
        notebook_file(page).write_text(written(notebook(page)))


if __name__ == "__main__":
    main(sys.argv[1:])
