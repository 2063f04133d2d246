"""Settings in messages and on screens are those of the side that reads them."""

import ast
from pathlib import Path

import pytest

import thinkalike
from thinkalike import jobs
from thinkalike.advice import PARTS_OF_FUNCTIONS, at_command_line, named_setting, text_label
from thinkalike.errors import ConfigError
from thinkalike.store import open_result

SOURCE = Path(thinkalike.__file__).parent

WORDS = [
    (("measure.massive", "keep"), {}, "measure.massive=keep", 'massive="keep"'),
    (("measure.batches", 3), {}, "measure.batches=3", "batches=3"),
    (("measure.null", True), {}, "measure.null=true", "null=True"),
    (("force", True), {}, "force=true", "force=True"),
    (("ruler", "bits"), {}, "ruler=bits", 'ruler="bits"'),
    (("measure.margin.word",), {"like": "..."}, "measure.margin.word=...", "margin={'word': ...}"),
    (("data.evaluation_tokens",), {}, "data.evaluation_tokens", "evaluation_tokens"),
    (("data", "pydoc"), {}, "data=pydoc", 'texts="pydoc"'),
    (("data", "text"), {}, "data=text", "texts"),
    (("data.files",), {"like": "[...]"}, "data.files=[...]", "texts=[...]"),
    (("stimuli.kinds.size", "nominal"), {}, "stimuli.kinds.size=nominal", "kinds={'size': 'nominal'}"),
    (("stimuli.kinds.Word size",), {"like": "['a']"}, "stimuli.kinds.Word size=['a']", "kinds={'Word size': ['a']}"),
    (("stimuli.kinds.size",), {}, "stimuli.kinds.size", "kinds['size']"),
    (("stitch", "low_rank"), {}, "stitch=low_rank", 'kind="low_rank"'),
    (("measure", "cka"), {}, "measure=cka", 'measure="cka"'),
    (("measure", "mlem"), {}, "measure=mlem", "thinkalike.mlem"),
    (("measure", "ruler"), {}, "measure=ruler", "thinkalike.ruler"),
    (("task", "stitch"), {}, "task=stitch", "thinkalike.stitch"),
    (("model.site", "z"), {}, "model.site=z", 'site="z"'),
    (("model.dtype", "float32"), {}, "model.dtype=float32", 'load_model(..., dtype="float32")'),
    (("model.device",), {}, "model.device", "device of load_model"),
    (("model@target",), {"like": ""}, "model@target=", "target="),
    (("trainer.memory",), {}, "trainer.memory", "trainer.memory"),
]


@pytest.mark.parametrize(("given", "options", "on_command_line", "in_python"), WORDS)
def test_a_setting_is_written_as_its_reader_writes_it(given, options, on_command_line, in_python):
    assert named_setting(*given, **options) == in_python
    with at_command_line():
        assert named_setting(*given, **options) == on_command_line
    assert named_setting(*given, **options) == in_python, "the words of a command end with it"


def test_text_in_memory_is_called_by_its_argument():
    assert (text_label("text"), text_label("pydoc")) == ("texts", "data pydoc")
    with at_command_line():
        assert text_label("text") == "data text"


def test_a_stored_result_advises_the_side_that_opens_it(tmp_path, cli):
    few = {"batches": 2, "tokens_per_batch": 128}
    result = thinkalike.compare("gelu-3l-mini", "solu-3l-mini", store=tmp_path, **few)
    for written in (str(result), result.summary, str(open_result(result.folder))):
        written = " ".join(written.split())
        assert "by chance (null=True)" in written
        assert 'by local mixing of tokens (ruler="bits")' in written
        assert "measure." not in written

    words = ["measure.batches=2", "measure.tokens_per_batch=128", f"store={tmp_path}"]
    words = ["measure=cka", "model=gelu-3l-mini", "model@target=solu-3l-mini", *words]
    screen = " ".join(cli("analyze", *words).stdout.split())
    assert str(result.folder.name) in screen, "the command opened the result of the function"
    assert "by chance (measure.null=true)" in screen
    assert "by local mixing of tokens (ruler=bits)" in screen


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: thinkalike.compare("gelu-3l-mini", batches=-1), "^batches=-1 must"),
        (lambda: thinkalike.compare("gelu-3l-mini", massive="all"), '^massive="all" must'),
        (lambda: thinkalike.compare("gelu-3l-mini", measure="ckka"), '^measure="ckka" is not known'),
        (lambda: thinkalike.stitch("gelu-3l-mini", kind="ridge", norm="layer"), "^norm="),
        (lambda: thinkalike.diff("gelu-3l-mini", "gelu-3l-mini", pairs=3), "^pairs= has no effect"),
    ],
)
def test_refusals_name_arguments(call, message):
    with pytest.raises(ConfigError, match=message) as raised:
        call()
    assert not any(f"{part}." in str(raised.value) for part in PARTS_OF_FUNCTIONS)


# The files that read or write command lines, whose words are those of a command line always.
OF_COMMAND_LINES = (
    "cli/",
    "config/",
    "listing/",
    "contrib/",  # its experiments and trainings begin at a command line alone
    "inputs.py",
    "budget.py",
    "completion.py",
    "forecast.py",
    "instruments/trajectory/instrument.py",  # composes the training that it follows
    "measures/chance.py",  # says that it is a command line that has this setting
    "measures/row_groups.py",
)


def _messages(file: Path) -> list[tuple[int, str]]:
    """Return the texts of a file that a message may be made of, without docstrings and keys."""
    tree = ast.parse(file.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    called = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "named_setting":
            called |= {id(argument) for argument in node.args}
    texts = []
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in alone | called and " " in node.value:
            texts.append((node.lineno, node.value))
    return texts


def test_no_message_writes_a_setting_itself():
    wrong = []
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if name.startswith(OF_COMMAND_LINES):
            continue
        for line, text in _messages(file):
            for word in text.replace("`", " `").split():
                key, _, setting = word.lstrip("(").partition(".")
                if key in PARTS_OF_FUNCTIONS and setting.split("=")[0].isidentifier():
                    wrong.append(f"{name}:{line}: {word}")
    assert not wrong, "write it by thinkalike.advice.named_setting"


def _advised_keys() -> set[str]:
    """Return the keys that messages name by `named_setting`."""
    keys = set()
    for file in SOURCE.rglob("*.py"):
        if "contrib" in file.parts:  # what it adds is asked for at a command line
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            is_advice = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "named_setting"
            if is_advice and isinstance(node.args[0], ast.Constant):
                keys.add(node.args[0].value)
    return keys


def test_advised_settings_are_arguments_of_a_function():
    arguments = {"texts", "stimuli", "store", "force", "target", "source", "kinds", "measure"}
    for name in ("Stitch", "Compare", "Mlem", "Rsa", "Diff", "Lineage", "Trajectory"):
        arguments |= set(getattr(jobs, name).defaults())
    advised = _advised_keys()
    assert len(advised) > 40, "the keys are found"
    for key in advised:
        part = key.partition(".")[0]
        if part in PARTS_OF_FUNCTIONS or key in ("model.site", "model.head"):
            name = named_setting(key, like="...")
            assert name.partition("=")[0] in arguments, key
