"""In a notebook no function leaves a trace, whether it returns or raises, and threads may call any at once."""

import contextlib
import functools
import json
import locale
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import datasets
import huggingface_hub.utils
import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from hydra import compose, initialize_config_dir, version
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from matplotlib import pyplot

import thinkalike
import tiny
from thinkalike.config import compose_job
from thinkalike.config.compose import OptionsEverywhere, hydra_ready
from thinkalike.errors import ThinkalikeError
from thinkalike.global_state import isolated
from thinkalike.models.checkpoints import ASSETS
from thinkalike.models.hooks import pass_lock
from thinkalike.stitches.results import stitch_modules

PAIR = ("gelu-3l-mini", "solu-3l-mini")
TEXTS = [tiny.document(seed, 60) for seed in range(240)]
FEW = {"batches": 2, "tokens_per_batch": 128}
SHORT = {"layers": [1], "steps": 2, "tokens_per_step": 256, "evaluation_tokens": 2048, "evaluation_share": 0.5}
ALONE = {"sample": 40, "features": ["Number"], "folds": 2, "references": 0, "permutations": 2}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@functools.cache
def module():
    return transformers.AutoModelForCausalLM.from_pretrained(ASSETS / "gpt2-mini", dtype=torch.float32)


@functools.cache
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(ASSETS / "gpt2-mini")


def state_of_a_model(model):
    """What a user may have set of a model, and its weights."""
    switches = [(part.training, len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()]
    weights = [
        (each.requires_grad, each.dtype, each.device, each.data_ptr(), float(each.detach().double().sum()))
        for each in model.parameters()
    ]
    return switches, weights


def state_of_logging():
    loggers = [logging.root, *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    return {each.name: (each.level, list(map(id, each.handlers)), each.propagate) for each in loggers}


# checks of shapes draw numbers of Python in every test, so that these are watched in a process without them
WATCHED = {  # by name: what reads a state that the whole process shares
    "random state of NumPy": lambda: str(np.random.get_state()),
    "random state of torch": lambda: torch.get_rng_state().tolist(),
    "random state of GPUs": lambda: [each.tolist() for each in torch.cuda.get_rng_state_all()],
    "threads of torch": torch.get_num_threads,
    "default dtype": torch.get_default_dtype,
    "default device": lambda: str(torch.get_default_device()),
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "precision of products": torch.get_float32_matmul_precision,
    "flags of cuDNN": lambda: (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    "gradients": torch.is_grad_enabled,
    "warnings filters": lambda: list(warnings.filters),
    "where warnings go": lambda: warnings.showwarning,
    "working folder": os.getcwd,
    "environment": lambda: dict(os.environ),
    "path of imports": lambda: list(sys.path),
    "words of the command line": lambda: list(sys.argv),
    "hooks of errors": lambda: (sys.excepthook, threading.excepthook),
    "streams": lambda: (sys.stdout, sys.stderr),
    "handlers of signals": lambda: {each: signal.getsignal(each) for each in signal.valid_signals()},
    "logging": state_of_logging,
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "settings of matplotlib": lambda: dict(matplotlib.rcParams),
    "open figures": pyplot.get_fignums,
    "settings of pandas": lambda: pd.get_option("display.max_rows"),
    "errors of NumPy": np.geterr,
    "what transformers says": transformers.utils.logging.get_verbosity,
    "bars of transformers": transformers.utils.logging.is_progress_bar_enabled,
    "bars of downloads": huggingface_hub.utils.are_progress_bars_disabled,
    "bars of data sets": datasets.are_progress_bars_disabled,
    "application of Hydra": lambda: (id(GlobalHydra.instance()), GlobalHydra.instance().hydra),
    "version of Hydra": lambda: version.base_at_least("1.2"),
    "stored configurations of Hydra": lambda: sorted(ConfigStore.instance().repo),
    "a model of the user": lambda: state_of_a_model(module()),
}
CHANGES = {  # the control: what changes each of them
    "random state of NumPy": np.random.rand,
    "random state of torch": lambda: torch.rand(1),
    "threads of torch": lambda: torch.set_num_threads(2),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "flags of cuDNN": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "gradients": lambda: torch.set_grad_enabled(False),
    "warnings filters": lambda: warnings.simplefilter("ignore"),
    "where warnings go": lambda: setattr(warnings, "showwarning", print),
    "working folder": lambda: os.chdir("/"),
    "environment": lambda: os.environ.update(TOKENIZERS_PARALLELISM="maybe"),
    "path of imports": lambda: sys.path.append("/nowhere"),
    "handlers of signals": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "logging": lambda: logging.getLogger("transformers").setLevel(1),
    "what transformers says": transformers.utils.logging.set_verbosity_debug,
    "bars of transformers": transformers.utils.logging.disable_progress_bar,
    "bars of downloads": huggingface_hub.utils.disable_progress_bars,
    "bars of data sets": datasets.disable_progress_bars,
}


def states():
    return {name: read() for name, read in WATCHED.items()}


def traces_of(call):
    """The names of the states that a call leaves changed; an error that a user can act on does not matter."""
    warnings.simplefilter("default")
    np.random.seed(7)
    torch.manual_seed(int(time.monotonic_ns() % 2**31))
    before = states()
    with contextlib.suppress(ThinkalikeError, ValueError, ZeroDivisionError):
        call()
    return differing(before, states())


def differing(before, after):
    """The names of the states that differ; a logger that is new is that of a library which was imported meanwhile."""
    after["logging"] = {name: each for name, each in after["logging"].items() if name in before["logging"]}
    return [name for name in WATCHED if before[name] != after[name]]


@pytest.fixture
def _as_before():
    """Undo the changes of a control."""
    with isolated():
        yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("_as_before")
def test_the_watcher_sees_each_kind_of_change_and_it_is_undone(name):
    if name.startswith("bars"):  # which an earlier test of this process may have turned off
        transformers.utils.logging.enable_progress_bar()
        huggingface_hub.utils.enable_progress_bars()
        datasets.enable_progress_bars()
    assert name in traces_of(CHANGES[name])


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_job_changes_is_restored_also_after_an_error(name):
    def job():
        with isolated():
            CHANGES[name]()
            raise ZeroDivisionError

    assert traces_of(job) == []


def shown(result):
    axes = result.plot()
    pyplot.close((axes[0] if isinstance(axes, list) else axes).figure)
    return result


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def failing(x, y):
    raise ZeroDivisionError


CALLS = {
    "stitch": lambda: thinkalike.stitch(*PAIR, texts=TEXTS, **SHORT),
    "stitch, threads and precision": lambda: thinkalike.stitch(*PAIR, texts=TEXTS, threads=2, **SHORT),
    "compare": lambda: thinkalike.compare(*PAIR, texts=TEXTS, **FEW),
    "compare in memory": lambda: thinkalike.compare((module(), tokenizer()), texts=TEXTS, **FEW),
    "compare by a ruler": lambda: thinkalike.compare(*PAIR, measure="ruler", texts=TEXTS, words=256),
    "mlem": lambda: thinkalike.mlem("gpt2-mini", **ALONE),
    "rsa": lambda: shown(thinkalike.rsa(["gpt2-mini"], stimuli="crossed", sample=40, layers=[0, 1])),
    "rsa of arrays": lambda: thinkalike.rsa([drawn(9, 3), drawn(9, 4)]),
    "diff": lambda: thinkalike.diff(PAIR[0], PAIR[0], texts=TEXTS, tokens=256, tokens_per_part=64),
    "trajectory": lambda: thinkalike.trajectory(PAIR[0]),
    "load_model": lambda: thinkalike.load_model("gelu-3l-mini"),
    "load_model in memory": lambda: thinkalike.load_model(module(), tokenizer()),
    "load_model, refused": lambda: thinkalike.load_model("gelu-3l-min"),
    "a wrong setting": lambda: thinkalike.stitch(*PAIR, steps=-1),
    "a measure that fails": lambda: thinkalike.compare(*PAIR, measure=failing, texts=TEXTS, **FEW),
    "texts that are too few": lambda: thinkalike.stitch(*PAIR, texts=["One."], **SHORT),
    "a result": lambda: shown(thinkalike.compare(*PAIR, texts=TEXTS, store="kept", **FEW))._repr_html_(),
    "results": lambda: thinkalike.results("nowhere"),
    "open_result": lambda: thinkalike.open_result("nowhere"),
    "cka": lambda: thinkalike.cka(drawn(9, 3), drawn(9, 4)),
    "mantel": lambda: thinkalike.mantel([drawn(9, 3)], permutations=9),
    "mutual_knn": lambda: thinkalike.mutual_knn(drawn(9, 3), drawn(9, 4), k=2),
    "bootstrap_interval": lambda: thinkalike.bootstrap_interval([1.0, 2.0, 4.0], [1, 2, 3]),
    "calibrate": lambda: thinkalike.calibrate(thinkalike.cka, drawn(24, 3), drawn(24, 4), [n // 2 for n in range(24)]),
    "feature_importance": lambda: thinkalike.feature_importance(
        thinkalike.MLEM(alpha=1.0), np.arange(24)[:, None] % 3, drawn(24, 3), folds=2
    ),
    "StitchModule": lambda: thinkalike.StitchModule("linear", 4, 4),
}


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", CALLS)
def test_a_function_leaves_no_trace(name):
    assert traces_of(CALLS[name]) == []


def test_the_next_random_numbers_of_a_notebook_are_new_ones():
    """A job that seeds torch for its own numbers must not make those of its user a constant."""
    drawn_after = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = torch.randn(3)
        torch.manual_seed(seed)
        thinkalike.compare(*PAIR, texts=TEXTS, **FEW)
        assert torch.equal(torch.randn(3), expected)
        drawn_after.append(expected)
    assert not torch.equal(*drawn_after)


def test_determinism_that_nobody_changed_is_not_set_again(monkeypatch):
    """Setting it imports torch's compiler, which takes more than a second."""
    calls = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *words, **_: calls.append(words))
    with isolated():
        pass
    assert calls == []
    with isolated():
        torch._C._set_deterministic_algorithms(True)
    torch._C._set_deterministic_algorithms(False)
    assert calls == [(False,)], "control"


PRECISIONS = {  # that a user may set, by the word of torch for each
    "all backends": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "all operations of CUDA": lambda: setattr(torch.backends.cudnn, "fp32_precision", "tf32"),
    "all operations of oneDNN": lambda: torch.backends.mkldnn.set_flags(_fp32_precision="bf16"),
    "products of CUDA": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "products of oneDNN": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "convolutions": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "CUDA as before 2.9": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "common": lambda: torch.set_float32_matmul_precision("medium"),
    "common, and exact for CUDA": lambda: (
        torch.set_float32_matmul_precision("high"),
        setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    ),
}


def precisions_of_torch():
    """The precision of every backend and operation, and the common one or the error of torch."""
    backends = torch.backends
    parts = [backends, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul]
    parts += [backends.mkldnn, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    precisions = [part.fp32_precision for part in parts]
    try:
        return [*precisions, torch.get_float32_matmul_precision()]
    except RuntimeError as error:
        return [*precisions, str(error)]


@pytest.fixture
def _exact_afterwards():
    yield
    backends = torch.backends
    torch.set_float32_matmul_precision("highest")
    backends.mkldnn.set_flags(_fp32_precision="none")
    for part in (backends, backends.cudnn, backends.cuda.matmul, backends.mkldnn.matmul):
        part.fp32_precision = "none"
    for part in (backends.cudnn.conv, backends.cudnn.rnn):
        part.fp32_precision = "tf32"


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")
@pytest.mark.usefixtures("_exact_afterwards")
@pytest.mark.parametrize("name", PRECISIONS)
def test_products_are_exact_in_a_job_whatever_precision_the_user_allows(name):
    first, second = drawn(9, 3), drawn(9, 4)
    exact = thinkalike.cka(first, second)
    at_first = precisions_of_torch()
    PRECISIONS[name]()
    set_by_user = precisions_of_torch()
    assert set_by_user != at_first, "control"

    assert thinkalike.cka(first, second) == exact
    with isolated():
        products = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
        assert {part.fp32_precision for part in products} == {"ieee"}
        assert torch.get_float32_matmul_precision() == "highest"
        torch.set_float32_matmul_precision("high")  # as a measure of the user might
    assert precisions_of_torch() == set_by_user


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")
@pytest.mark.usefixtures("_exact_afterwards")
def test_after_a_job_products_follow_the_precision_of_all_backends_as_before():
    torch.backends.fp32_precision = "tf32"
    with isolated():
        pass
    torch.backends.fp32_precision = "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"


FRESH = """
import json, logging, os, warnings
import random
import thinkalike, torch
before, state = dict(os.environ), random.getstate()
thinkalike.stitch("gelu-3l-mini", layers=[1], steps=1, tokens_per_step=256, evaluation_tokens=2048)
thinkalike.mlem("gpt2-mini", sample=40, features=["Number"], folds=2, references=0)
thinkalike.mantel([torch.randn(9, 3)], permutations=9)
import datasets, huggingface_hub, huggingface_hub.utils, transformers
print(json.dumps({
    "environment": dict(os.environ) == before,
    "random state of Python": random.getstate() == state,
    "transformers": transformers.utils.logging.get_verbosity() == logging.WARNING,
    "bars": transformers.utils.logging.is_progress_bar_enabled(),
    "downloads": not huggingface_hub.utils.are_progress_bars_disabled(),
    "data sets": not datasets.are_progress_bars_disabled(),
    "lightning": logging.getLogger("pytorch_lightning").level != logging.WARNING,
}))
"""


@pytest.mark.ci_slow
def test_a_library_that_a_job_is_the_first_to_import_behaves_as_usual(tmp_path):
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS", "TRANSFORMERS_VERBOSITY", "TOKENIZERS_PARALLELISM"}
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    done = subprocess.run([sys.executable, "-c", FRESH], env=environment, capture_output=True, text=True, check=True)
    assert all(json.loads(done.stdout.splitlines()[-1]).values()), done.stdout


def test_an_application_of_hydra_finds_its_own_options_alone(tmp_path, monkeypatch):
    """Models and measures of this project are no options of another application in the same process."""
    monkeypatch.setattr(OptionsEverywhere, "is_ours", False)  # as in a notebook, which runs no command
    (tmp_path / "app.yaml").write_text("a: 1\n")
    compose_job("analyze", ["measure=cka"])  # as a command does, which takes up Hydra's plugins
    assert any(each.__name__ == "OptionsEverywhere" for each in Plugins.instance().discover(SearchPathPlugin)), (
        "control"
    )
    with initialize_config_dir(str(tmp_path), version_base=None):
        paths = [each.path for each in GlobalHydra.instance().config_loader().get_search_path().get_path()]
        assert not any(path.startswith("thinkalike://") for path in paths)
        thinkalike.load_model("gelu-3l-mini")
        assert compose("app").a == 1


@pytest.mark.ci_slow
def test_eight_threads_give_what_they_give_one_after_another():
    calls = [
        *(lambda seed=seed: thinkalike.compare(*PAIR, texts=TEXTS[seed:], **FEW) for seed in range(2)),
        lambda: thinkalike.compare((module(), tokenizer()), texts=TEXTS, **FEW),
        lambda: thinkalike.compare((module(), tokenizer()), texts=TEXTS, **FEW),
        lambda: thinkalike.diff(*[(module(), tokenizer())] * 2, texts=TEXTS, tokens=256, tokens_per_part=64),
        lambda: thinkalike.stitch(*PAIR, texts=TEXTS, **SHORT),
        lambda: thinkalike.stitch(*PAIR, texts=TEXTS, seed=1, **SHORT),
        lambda: thinkalike.rsa(["gpt2-mini"], stimuli="crossed", sample=40, layers=[0, 1]),
    ]  # fmt: skip
    serial = [call().table for call in calls]
    begun = threading.Barrier(len(calls))

    def at_once(call):
        begun.wait(60)
        return call().table

    before = states()
    with ThreadPoolExecutor(len(calls)) as pool:
        together = list(pool.map(at_once, calls))
    for alone, beside in zip(serial, together, strict=True):
        pd.testing.assert_frame_equal(alone, beside, check_exact=True)
    assert differing(before, states()) == []


def in_forked_process(call, seconds=20):
    """Whether a call ends in a process forked from this one, which is killed after so many seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextlib.contextmanager
def entered_by_another_thread(context):
    """While this is open, another thread is inside a context."""
    inside, done = threading.Event(), threading.Event()

    def enter():
        with context():
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=enter)
    thread.start()
    try:
        assert inside.wait(60)
        yield
    finally:
        done.set()
        thread.join(60)


LOCKS = {
    "job": isolated,
    "pass of a model": lambda: pass_lock(module()),
    "composition": hydra_ready,
    "composition in a job": lambda: nested(isolated(), hydra_ready()),
    "pass in a job": lambda: nested(isolated(), pass_lock(module())),
}


@contextlib.contextmanager
def nested(outer, inner):
    with outer, inner:
        yield


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked here")
@pytest.mark.parametrize("name", LOCKS)
def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks(name):
    def job():
        with LOCKS[name]():
            return thinkalike.cka(drawn(9, 3), drawn(9, 4))

    module()
    with entered_by_another_thread(LOCKS[name]):
        assert in_forked_process(job)
    job()  # this process goes on as before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked here")
def test_a_process_that_a_job_forks_is_still_in_the_job():
    """There nothing is restored when a job that the first one needs has ended."""

    def inner_job():
        with isolated():
            os.environ["OF_THE_JOB"] = "1"
        assert "OF_THE_JOB" in os.environ

    with isolated():
        assert in_forked_process(inner_job)


def test_names_that_are_loaded_do_not_wait_for_the_job_of_another_thread():
    names = [*thinkalike.__all__, "__version__"]
    for name in names:
        getattr(thinkalike, name)
    with entered_by_another_thread(isolated), ThreadPoolExecutor(1) as pool:
        looked_up = pool.submit(lambda: [hasattr(thinkalike, name) for name in (*names, "no_such_name")])
        assert looked_up.result(20) == [*[True] * len(names), False]


FIRST_USE = """
import threading, time, thinkalike
from thinkalike.global_state import isolated
with isolated():
    thread = threading.Thread(target=lambda: thinkalike.cka)
    thread.start()
    thread.join(1)
    print(thread.is_alive())
thread.join(60)
print(thread.is_alive())
"""


@pytest.mark.ci_slow
def test_the_first_use_of_a_name_waits_as_it_imports_libraries():
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


class Passing(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def several_modes():
    with default_device("meta"), Passing(), torch.device("meta"), Passing():
        yield


DEVICES = {  # what a user may have set; "meta" stands for any device that is not that of the arrays
    "set for good": lambda: default_device("meta"),
    "set for a while": lambda: torch.device("meta"),
    "set for a while, inside another": lambda: nested(default_device("cpu"), torch.device("meta")),
    "among other modes": several_modes,
}


@functools.cache
def small_stitch():
    return thinkalike.stitch("gelu-3l-mini", layers=[1], steps=1, tokens_per_step=256, evaluation_tokens=2048)


LEVELS = pd.DataFrame({"a": list("xyz") * 10})
STATES = np.random.default_rng(0).normal(size=(2, 30, 4))
ON_ARRAYS = {
    "compare": lambda: thinkalike.compare(*STATES).table["value"].iloc[0],
    "cka": lambda: thinkalike.cka(*STATES),
    "mutual_knn": lambda: thinkalike.mutual_knn(*STATES, k=3),
    "rsa": lambda: thinkalike.rsa([*STATES])[0, 1],
    "mantel": lambda: thinkalike.mantel([*STATES], permutations=9)[0][0, 1],
    "MLEM": lambda: thinkalike.MLEM(alpha=1.0).fit(LEVELS, STATES[0]).score(LEVELS, STATES[1]),
    "MLEM, predicted": lambda: thinkalike.MLEM(alpha=1.0).fit(LEVELS, STATES[0]).predict(LEVELS).sum(),
    "bootstrap_interval": lambda: thinkalike.bootstrap_interval([1.0, 2.0, 4.0], [1, 2, 3]).value,
    "load_stitch": lambda: thinkalike.load_stitch(small_stitch())[1, 1].weight.sum(),
    "stitch_modules": lambda: next(stitch_modules(small_stitch())[1, 1].parameters()).sum(),
    "a model": lambda: thinkalike.load_model("gelu-3l-mini").head(torch.ones(1, 2, dtype=int, device="cpu"), 1).sum(),
}


@pytest.mark.parametrize("set_by_user", DEVICES)
@pytest.mark.parametrize("name", ON_ARRAYS)
def test_a_default_device_of_the_user_is_left_for_a_call(name, set_by_user):
    expected = float(ON_ARRAYS[name]())
    with DEVICES[set_by_user]():
        modes = torch.overrides._get_current_function_mode_stack()
        assert float(ON_ARRAYS[name]()) == expected
        assert torch.overrides._get_current_function_mode_stack() == modes
        assert torch.get_default_device().type == torch.empty(1).device.type == "meta"
    assert torch.get_default_device().type == torch.empty(1).device.type == "cpu"


def test_a_module_is_made_on_the_default_device_of_the_user():
    with torch.device("meta"):
        assert next(thinkalike.StitchModule("linear", 4, 4).parameters()).is_meta


def test_other_modes_of_the_user_stay_and_those_that_a_job_leaves_end():
    with Passing() as mode, torch.device("meta"):
        with isolated():
            torch.set_default_device("cpu")
            assert mode in torch.overrides._get_current_function_mode_stack()
            Passing().__enter__()
        assert torch.get_default_device().type == "meta"
        assert len(torch.overrides._get_current_function_mode_stack()) == 2
    assert torch.overrides._get_current_function_mode_stack() == []
