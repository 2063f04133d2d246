"""Damage is noticed and named: a bit of a result, of a state, of a cache; what dead processes leave is cleared away."""

import contextlib
import errno
import hashlib
import json
import math
import multiprocessing
import os
import resource
import shutil
import time
import zipfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock

from planted_headlines import check_lacking_result_is_one_line
from stores import finish
from thinkalike import digests, open_result
from thinkalike.digests import digest_of, json_object, read_json, remembered_digest
from thinkalike.errors import StoreError, ThinkalikeError
from thinkalike.listing import Query, StoreContent, results, search, selected
from thinkalike.report.reports import gather
from thinkalike.store import StoredJob, damage, newest_state, read_state, seal, write_state

TABLE = pd.DataFrame({"layer": [0, 1], "penalty": [0.5, 0.25]})


def result_in(store: Path, key: str = "abc", penalty: float = 0.5, table: pd.DataFrame = TABLE) -> Path:
    """The folder of a finished job with a table, arrays, a figure and curves."""
    curves = StoredJob(str(store), "stitching", key).partial / "curves"

    def beside(folder: Path) -> None:
        for place, text in ((curves / "metrics.csv", "step,loss\n0,1\n"), (folder / "figures" / "map.svg", "<svg/>")):
            place.parent.mkdir()
            place.write_text(text)

    more = {"scalars": {"penalty": penalty}, "arrays": {"map": np.arange(4.0)}, "beside": beside}
    return finish(store, "stitching", key, {"table": table}, **more).folder


FILES = ["table.csv", "arrays.npz", "result.json", "config.yaml", "curves/metrics.csv", "figures/map.svg"]


def flip(path: Path, place: int = -2) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named_whichever_it_is(name, harm, tmp_path):
    folder = result_in(tmp_path)
    assert open_result(folder).scalars == {"penalty": 0.5}
    path = folder / name
    if harm == "flip":
        flip(path, len(path.read_bytes()) // 2)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
    with pytest.raises(StoreError, match=rf"{name} (is missing|is damaged|holds)|would have a {name}"):
        open_result(folder)


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    folder = result_in(tmp_path)

    def denied(path):  # root may read all
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("thinkalike.store.manifest.digest_of", denied)
    with pytest.raises(StoreError, match=r"cannot be read: Permission denied\Z"):
        open_result(folder)


def test_a_finished_job_names_a_damaged_file_and_force_mends_it(tmp_path):
    folder = result_in(tmp_path)
    flip(folder / "table.csv")
    with pytest.raises(StoreError, match=r"table\.csv is damaged: its checksum .*; delete .* with force=True"):
        StoredJob(str(tmp_path), "stitching", "abc").result()
    assert result_in(tmp_path) == folder
    assert StoredJob(str(tmp_path), "stitching", "abc").result().scalars == {"penalty": 0.5}


def test_the_content_of_a_result_is_its_numbers(tmp_path):
    same = open_result(result_in(tmp_path, "one")), open_result(result_in(tmp_path, "two", penalty=0.75))
    assert same[0].fingerprint() == same[1].fingerprint(), "result.json also holds times"
    other = open_result(result_in(tmp_path, "three", table=TABLE * 2))
    assert other.fingerprint() != same[0].fingerprint()


def test_a_state_is_read_as_written_and_replaced_by_the_next(tmp_path):
    first = write_state(tmp_path, "half", {"step": 1, "weights": torch.arange(3.0)})
    assert read_state(first)["weights"].tolist() == [0, 1, 2]
    for step in range(2, 12):  # ten is after nine, though not in the alphabet
        write_state(tmp_path, "half", {"step": step})
    write_state(tmp_path, "half-life", {"step": 99})
    assert read_state(newest_state(tmp_path, "half"))["step"] == 11
    assert len(list(tmp_path.iterdir())) == 2
    assert newest_state(tmp_path, "other") is None


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_state_with_a_flipped_bit_is_put_aside(place, tmp_path, caplog):
    path = write_state(tmp_path, "half", {"weights": torch.arange(300.0)})
    flip(path, place)
    assert newest_state(tmp_path, "half") is None
    assert f"{path} is damaged" in caplog.text
    assert [each.suffix for each in tmp_path.iterdir()] == [".damaged"]
    assert read_state(write_state(tmp_path, "half", {"step": 1})) == {"step": 1}


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    before = write_state(tmp_path, "half", {"step": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for step in ("torch.save", "os.fsync", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(step, full)
            with pytest.raises(OSError, match="No space"):
                write_state(tmp_path, "half", {"step": 2})
        assert read_state(newest_state(tmp_path, "half")) == {"step": 1}
        assert newest_state(tmp_path, "half") == before
    write_state(tmp_path, "half", {"step": 3})
    assert len(list(tmp_path.iterdir())) == 1, "the file that was not finished is gone"


def test_leftovers_beside_a_finished_result_are_cleared_away(tmp_path):
    result_in(tmp_path)
    job = StoredJob(str(tmp_path), "stitching", "abc")
    write_state(job.states, "half", {"step": 1})
    (job.partial / "lock").touch()
    assert job.result() is not None
    assert not job.partial.exists()


def test_what_another_process_is_using_is_left_alone(tmp_path):
    result_in(tmp_path)
    job = StoredJob(str(tmp_path), "stitching", "abc")
    job.partial.mkdir()
    with FileLock(job.partial / "lock"):  # it does the job again
        assert job.result() is not None
        assert job.partial.exists()


def test_a_new_result_replaces_all_of_an_old_one(tmp_path):
    folder = result_in(tmp_path)
    (folder / "old").touch()
    assert open_result(result_in(tmp_path)).folder == folder
    assert not (folder / "old").exists()


def test_a_process_that_dies_leaves_all_its_curves(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    write_state(StoredJob(str(tmp_path), "stitching", "abc").states, "half", {"step": 1})
    monkeypatch.setattr("thinkalike.store.job.seal", killed)
    with pytest.raises(KeyboardInterrupt):
        result_in(tmp_path)
    partial = StoredJob(str(tmp_path), "stitching", "abc").partial
    assert (partial / "curves" / "metrics.csv").read_text() == "step,loss\n0,1\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, in which every file is large."""
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "LARGE", 10)
    monkeypatch.setattr(digests, "SMALL", 0)
    monkeypatch.setattr(digests, "_known_digests", {})
    return tmp_path / "cache" / "digests"


@pytest.fixture
def reads(monkeypatch):
    """The files that were read."""
    seen = []

    def read(path):
        seen.append(path.name)
        return digest_of(path)

    monkeypatch.setattr(digests, "digest_of", read)
    return seen


def later(monkeypatch, seconds=60.0):
    monkeypatch.setattr(digests.time, "time", lambda now=digests.time.time: now() + seconds)


def weights(folder, content=b"some weights"):
    path = folder / "model.safetensors"
    path.write_bytes(content)
    return path


def forget(monkeypatch):
    """As another process would begin."""
    monkeypatch.setattr(digests, "_known_digests", {})


def test_a_file_is_read_once_in_this_process_and_in_others(tmp_path, cache, reads, monkeypatch):
    path = weights(tmp_path)
    later(monkeypatch)
    assert remembered_digest(path) == hashlib.sha256(b"some weights").hexdigest()
    assert remembered_digest(path) == remembered_digest(path)
    assert len(reads) == 1
    forget(monkeypatch)
    assert remembered_digest(path) == hashlib.sha256(b"some weights").hexdigest()
    assert len(reads) == 1


def test_a_digest_of_a_file_just_written_is_not_remembered(tmp_path, cache, reads):
    path = weights(tmp_path)
    first = remembered_digest(path)
    stamp = path.stat().st_mtime_ns
    weights(tmp_path, b"other weight")
    os.utime(path, ns=(stamp, stamp))  # within the granularity of the clock
    assert remembered_digest(path) != first
    assert len(reads) == 2
    assert not cache.exists()


@pytest.mark.parametrize("how", ["content", "size", "copy with its times"])
def test_a_changed_file_is_read_again(tmp_path, cache, reads, monkeypatch, how):
    path = weights(tmp_path)
    later(monkeypatch)
    first = remembered_digest(path)
    stamp = path.stat().st_mtime_ns
    if how == "copy with its times":  # as rsync and cp -p make it; the time of the inode tells
        (tmp_path / "new").write_bytes(b"other weight")
        os.utime(tmp_path / "new", ns=(stamp, stamp))
        shutil.copy2(tmp_path / "new", path)
        assert path.stat().st_mtime_ns == stamp
    else:
        weights(tmp_path, b"other weight" if how == "content" else b"more weights than before")
    assert remembered_digest(path) != first


def test_a_damaged_entry_is_made_anew(tmp_path, cache, reads, monkeypatch):
    path = weights(tmp_path)
    later(monkeypatch)
    right = remembered_digest(path)
    (entry,) = cache.iterdir()
    whole = json.loads(entry.read_text())
    for harm in ("", "{", "[]", "null", json.dumps({**whole, "file": "x"})):
        entry.write_text(harm)
        forget(monkeypatch)
        assert remembered_digest(path) == right
        assert json.loads(entry.read_text()) == whole
    assert len(reads) == 6
    assert [each.suffix for each in cache.iterdir()] == [".json"]


# what a stranger may have put into a store: a file of a result, and what is in it; the result is sealed with it
RECORD = {"kind": "stitching", "key": "abc", "scalars": {}, "settings": {}, "provenance": {"models": [{"name": "a"}]}}
HOSTILE = {
    "scalars": {"scalars": [1, 2]},
    "scalar": {"scalars": {"a": "1"}},
    "long": {"scalars": {"a": 10**400}},
    "models": {"provenance": {"models": ["a"]}},
    "provenance": {"provenance": []},
    "phases": {"provenance": {"phases": {"a": "b"}}},
    "headlines": {"headlines": [{"name": "a"}] * 3},
    "text columns": {"text_columns": {"table": "source"}},
    "many": {"headlines": [{"name": "a", "value": 1.0}] * 200_000},
    "few but too many": {"headlines": [{"name": "a", "value": 1.0}] * 2_000},
    "kind": {"kind": 3},
    "settings": {"settings": "none"},
    "date": {"provenance": {"date": "yesterday"}},
    "date as a number": {"provenance": {"date": 5}},
    "versions": {"provenance": {"versions": ["torch"]}},
    "warnings": {"provenance": {"warnings": {"a": 1}}},
    "total": {"headlines": [{"name": "claims", "value": 3, "of": 2.7}]},
    "settings of one name": {"settings": {"a": {"b": 1}, "a.b": 2}},
    "settings of one name deeper": {"settings": {"a": {"b": {"c": 1}, "b.c": 1}}},
    "endless total": {"headlines": [{"name": "claims", "value": 3, "of": float("inf")}]},
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_of_another_form_is_one_line(name, tmp_path):
    folder = result_in(tmp_path)
    (folder / "result.json").write_text(json.dumps(RECORD | HOSTILE[name]))
    seal(folder)
    with pytest.raises(StoreError, match=r"result\.json (cannot be read \(|is damaged: it has )"):
        _ = open_result(folder).headlines
    found = search(tmp_path)
    assert (len(found.entries), len(found.skipped)) == (0, 1)
    with pytest.raises(StoreError, match=r"result\.json (cannot be read \(|is damaged: it has )"):
        gather([folder])


def test_a_result_in_the_folder_of_another_is_not_taken_for_it(tmp_path):
    folder = result_in(tmp_path)
    (tmp_path / "cka").mkdir()
    shutil.copytree(folder, tmp_path / "cka" / "abc")
    shutil.copytree(folder, tmp_path / "stitching" / "def")
    for kind, key in (("cka", "abc"), ("stitching", "def")):
        with pytest.raises(StoreError, match=r"holds the result abc of stitching; delete .* with force=True"):
            StoredJob(str(tmp_path), kind, key).result()
    found = search(tmp_path)
    assert [entry.result.folder for entry in found.entries] == [folder]
    assert len(found.skipped) == 2
    assert all("holds the result stitching/abc, and its folder is that of" in line for line in found.skipped)


@pytest.mark.parametrize("kind", ["cka", "r2", "mlem", "rsa", "loss", "diff", "stitching", "ruler"])
def test_a_result_that_lacks_what_its_kind_shows_is_one_line(kind, tmp_path):
    check_lacking_result_is_one_line(kind, tmp_path)


def test_a_record_of_another_version_is_read(tmp_path):
    """One with a field that this version does not know, and one without what older ones lack."""
    folder = result_in(tmp_path)
    headline = {"name": "a\ud800\x1b[2J", "value": 1, "low": None, "colour": "red"}
    record = {"kind": "stitching", "key": "abc", "headlines": [headline], "settings": {"b\ud800": "c\udfff"}}
    (folder / "result.json").write_text(json.dumps(record))
    seal(folder)
    result = open_result(folder)
    assert result.headlines[0].value == 1
    assert (result.scalars, result.settings, result.provenance) == ({}, {"b?": "c?"}, {})
    assert len(search(tmp_path).entries) == 1
    assert results(tmp_path)["headline"].tolist() == ["a?\x1b[2J"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"files": {"table.csv": [1e400, "x"]}, "digest": ""}', '{"files": {}}', "[]",
     '{"files": 3, "digest": 1}', '{"files": {"a": 1}}', "\0", '{"a": ' * 5000],
)  # fmt: skip
def test_a_manifest_of_another_form_is_damaged(text, tmp_path):
    folder = result_in(tmp_path)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        open_result(folder)


@pytest.mark.parametrize("name", ["../../secret", "{tmp}/secret", "a\0b", "figures/../../../secret"])
def test_a_manifest_names_nothing_outside(name, tmp_path):
    folder, secret = result_in(tmp_path / "store"), tmp_path / "secret"
    secret.write_text("x")
    manifest = json.loads((folder / "manifest.json").read_text())
    entries = manifest["files"] | {name.format(tmp=tmp_path): [1, digest_of(secret)]}
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"files": entries, "digest": digest}))
    with pytest.raises(StoreError, match="damaged"):
        open_result(folder).save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


REPEAT = "{1}: &{1} {{p: *{0}, q: *{0}, r: *{0}, s: *{0}}}\n"
ALIASES = "a: &a {x: 1, y: 2}\n" + "".join(map(REPEAT.format, "abcdefghijk", "bcdefghijkl"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", [ALIASES, "a: &a [*a]", "a: " + "[" * 5000, "!!python/object/apply:os.system [ls]", "x"]
)
def test_a_configuration_of_a_stranger_is_one_line(text, tmp_path):
    folder = result_in(tmp_path)
    (folder / "config.yaml").write_text(text)
    seal(folder)
    with pytest.raises(StoreError, match=r"config\.yaml cannot be read"):
        _ = open_result(folder).config


def npz(path: Path, header: bytes, content: bytes = b"\0" * 64) -> None:
    """Write an archive with one array, of whatever header."""
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "header",
    [b"{'descr': '<f8', 'fortran_order': False, 'shape': (-3,), }",
     b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
     b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }", b"__import__('os').getcwd()", b"{}"],
)  # fmt: skip
def test_arrays_of_a_stranger_are_one_line(header, tmp_path):
    folder = result_in(tmp_path)
    npz(folder / "arrays.npz", header)
    seal(folder)
    with pytest.raises(StoreError, match=r"arrays\.npz cannot be read"):
        _ = open_result(folder).arrays


def in_front(path: Path) -> None:
    """Write an archive with bytes before it."""
    np.savez(path, a=np.zeros(3))
    path.write_bytes(b"\r\n" + path.read_bytes())


NO_PLAIN_ARRAYS = {  # what writes the file, and whether it has pickled objects
    "a structured array of many fields": (
        lambda path: np.savez(path, a=np.zeros(2, [(f"neuron_{field}", "f8") for field in range(800)])),
        False,
    ),
    "bytes before the archive": (in_front, False),
    "a long header": (
        lambda path: npz(path, b"{'descr': '<f8', 'fortran_order': False, 'shape': (8,), }" + b" " * 20_000),
        False,
    ),
    "objects": (lambda path: np.savez(path, a=np.array([{}, 3], dtype=object)), True),
    "a structured array with objects": (
        lambda path: np.savez(path, a=np.zeros(2, [("x", "O"), ("y", "f8")])),
        True,
    ),
}


@pytest.mark.parametrize("case", NO_PLAIN_ARRAYS)
def test_only_a_file_of_pickled_objects_is_said_to_hold_some(case, tmp_path):
    write, has_objects = NO_PLAIN_ARRAYS[case]
    folder = result_in(tmp_path)
    write(folder / "arrays.npz")
    seal(folder)
    with pytest.raises(StoreError, match="never run; save arrays of numbers or text") as caught:
        _ = open_result(folder).arrays
    assert ("holds pickled objects" in str(caught.value)) == has_objects
    assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize(
    ("members", "said"),
    [({"a.npy": b"no header"}, "a in it is not an array"),
     ({"a.npy": b"", "a.npy.npy": b""}, "ends in .npy twice")],
)  # fmt: skip
def test_members_of_an_archive_that_are_no_arrays_are_refused(members, said, tmp_path):
    folder = result_in(tmp_path)
    with zipfile.ZipFile(folder / "arrays.npz", "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    seal(folder)
    with pytest.raises(StoreError, match=said):
        _ = open_result(folder).arrays


def test_arrays_that_do_not_fit_are_not_made(tmp_path, monkeypatch):
    folder = result_in(tmp_path)
    npz(folder / "arrays.npz", b"{'descr': '<f8', 'fortran_order': False, 'shape': (8,), }")
    seal(folder)
    assert open_result(folder).arrays["a"].tolist() == [0.0] * 8, "control"
    monkeypatch.setattr("thinkalike.memory.available_bytes", lambda device: 100)
    with pytest.raises(StoreError, match="are free"):
        _ = open_result(folder).arrays


@pytest.mark.parametrize(
    "place", ["abc.partial", "abc.partial/result", "abc.partial/checkpoints", "abc.partial/lock", ""]
)
def test_a_link_inside_a_store_leads_nowhere(place, tmp_path):
    """Else what is there would be written over, or removed as what a process left that died."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    link = tmp_path / "store" / "stitching" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(there / "mine.txt" if place.endswith("lock") else there)
    with pytest.raises(StoreError, match="is a link"):
        result_in(tmp_path / "store")
    assert (there / "mine.txt").read_text() == "mine"
    assert [path.name for path in there.iterdir()] == ["mine.txt"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(("second name", name) for name in ("checkpoints/x.aside", "checkpoints/warnings.aside", "lock")),
        *(("second name", name) for name in ("curves/metrics.csv", "kept/deeper/x.pt")),
        *(("pipe", name) for name in ("checkpoints/warnings.json", "checkpoints/x.aside", "curves/x", "lock")),
        *(("folder", name) for name in ("checkpoints/x.aside", "checkpoints/x-1-0123456789abcdef.pt")),
        *(("file", name) for name in ("checkpoints", "curves", "result", "old", "")),
    ],
)
def test_what_a_stranger_left_of_a_run_is_refused(kind, place, tmp_path):
    """Else a file outside is written over, reading it has no end, or it is an error somewhere later."""
    outside, left = tmp_path / "mine.txt", tmp_path / "store" / "stitching" / "abc.partial" / place
    outside.write_text("mine")
    left.parent.mkdir(parents=True)
    if kind == "second name":
        os.link(outside, left)
    elif kind == "pipe":
        os.mkfifo(left)
    elif kind == "folder":
        left.mkdir()
    else:
        left.write_text("a file")
    with pytest.raises(StoreError, match=r"remove it"):
        result_in(tmp_path / "store")
    assert outside.read_text() == "mine"


def test_a_whole_file_that_is_no_state_is_one_line(tmp_path):
    """Its name has the right digest, which says that it is whole and not who wrote it."""
    content = {"text": b"no state", "empty": b"", "archive": b"PK\x03\x04" + b"x" * 99}
    torch.save([1, 2], tmp_path / "list")
    content["list"] = (tmp_path / "list").read_bytes()
    for name, written in content.items():
        path = tmp_path / f"{name}-1-{hashlib.sha256(written).hexdigest()[:16]}.pt"
        path.write_bytes(written)
        assert newest_state(tmp_path, name) == path
        with pytest.raises(StoreError, match="holds no state of a job") as refused:
            read_state(path)
        assert "\n" not in str(refused.value)
        assert "weights_only" not in str(refused.value), "no advice to run what a file holds"


def test_a_damaged_state_does_not_hide_a_whole_one_of_its_number(tmp_path):
    whole = write_state(tmp_path, "half", {"done": 1})
    for digest in ("0" * 16, "f" * 16):
        (tmp_path / f"half-1-{digest}.pt").write_bytes(b"somebody's")
    assert newest_state(tmp_path, "half") == whole


def test_a_compressed_state_is_not_unpacked(tmp_path):
    plain = write_state(tmp_path, "half", {"done": torch.zeros(2**20)})
    with zipfile.ZipFile(plain) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    packed = tmp_path / "packed"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    path = tmp_path / f"half-2-{digest_of(packed)[:16]}.pt"
    packed.rename(path)
    with pytest.raises(StoreError, match=r"holds no state of a job \(its [\d,]+ bytes are 4,[\d,]+ after"):
        read_state(path)
    assert len(read_state(plain)["done"]) == 2**20, "control"


def resealed(folder: Path, names: Collection[str]) -> None:
    """Write a manifest of a folder that names these files, with a digest that is right."""
    entries = {name: [(folder / name).stat().st_size, digest_of(folder / name)] for name in names}
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"files": entries, "digest": digest}))


@pytest.mark.parametrize(
    ("text", "said"),
    [("a,b\n1,2,3\n", "its rows are of different lengths"), ("a," * 5000 + "a\n", "more than 5,000 columns")],
)
def test_a_table_whose_columns_would_move_is_not_read(text, said, tmp_path):
    """pandas takes the first cells of longer rows for names, so that all numbers would stand under another name."""
    folder = result_in(tmp_path / "store")
    names = [path.name for path in folder.glob("*.*") if path.name != "manifest.json"]
    (folder / "table.csv").write_text(text)
    resealed(folder, names)
    with pytest.raises(StoreError, match=said):
        _ = open_result(folder).table


def test_files_that_the_manifest_does_not_name_are_not_read(tmp_path):
    """No digest is compared with theirs, so that anybody could have put them there."""
    folder = result_in(tmp_path / "store")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.png").write_text("secret")
    for path in [*(folder / "figures").iterdir()]:
        path.unlink()
    (folder / "figures").rmdir()
    (folder / "figures").symlink_to(secret)
    resealed(folder, ["result.json"])
    result = open_result(folder)
    assert (result.arrays, result.tables, result.figures) == ({}, {}, [])
    for name in ("table", "config"):
        with pytest.raises(StoreError, match=r"its manifest\.json does not name it"):
            getattr(result, name)
    resealed(folder, ["table.csv"])
    with pytest.raises(StoreError, match=r"names no result\.json"):
        open_result(folder)
    assert len(search(tmp_path / "store").entries) == 0


@pytest.mark.parametrize("name", ["./table.csv", "curves//metrics.csv", "curves/./metrics.csv", "manifest.json"])
def test_a_file_has_one_name_in_a_manifest(name, tmp_path):
    folder = result_in(tmp_path / "store")
    resealed(folder, ["result.json", "table.csv", name])
    with pytest.raises(StoreError, match="damaged: no file of a result has the name"):
        open_result(folder)


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    result = open_result(result_in(tmp_path / "store"))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        with pytest.raises(StoreError, match="cannot be saved"):
            result.save(tmp_path / "copy")
    assert result.save(tmp_path / "copy").scalars == {"penalty": 0.5}


@pytest.mark.parametrize("what", ["a folder", "a file", "figures", "beside"])
def test_a_link_in_a_result_is_not_copied(what, tmp_path):
    folder, secret = result_in(tmp_path / "store"), tmp_path / "secrets"
    secret.mkdir()
    (secret / "key.txt").write_text("secret")
    if what == "a folder":
        shutil.rmtree(folder / "figures", ignore_errors=True)
        (folder / "figures").symlink_to(secret)
    elif what == "a file":
        (folder / "key.txt").symlink_to(secret / "key.txt")
    elif what == "figures":
        (folder / "figures").mkdir(exist_ok=True)
        (folder / "figures" / "key.png").symlink_to(secret / "key.txt")
    else:
        (folder / "unknown.txt").write_text("not sealed")
    if what != "beside":
        seal(folder)  # which names what the links lead to
        with contextlib.suppress(StoreError):
            open_result(folder).save(tmp_path / "copy")
    else:
        assert open_result(folder).save(tmp_path / "copy").scalars == {"penalty": 0.5}
    assert not [path for path in (tmp_path / "copy").rglob("*") if "key" in path.name or "unknown" in path.name]


def test_a_result_is_saved_in_a_new_folder_alone(tmp_path):
    result = open_result(result_in(tmp_path))
    copy = result.save(tmp_path / "new" / "copy")
    assert copy.fingerprint() == result.fingerprint()
    for place in (tmp_path / "new", "a\0b", tmp_path / "stitching" / "abc" / "table.csv" / "x"):
        with pytest.raises(ThinkalikeError, match=r"already|cannot be saved|NUL"):
            result.save(place)


def test_links_in_a_store_are_not_listed(tmp_path):
    result_in(tmp_path / "store")
    result_in(tmp_path / "other", "hidden")
    (tmp_path / "store" / "cka").symlink_to(tmp_path / "other" / "stitching")
    (tmp_path / "store" / "stitching" / "link").symlink_to(tmp_path / "other" / "stitching" / "hidden")
    for place in ("loop", "stitching/loop"):
        (tmp_path / "store" / place).symlink_to(tmp_path / "store" / place)
    found = search(tmp_path / "store")
    assert [entry.result.key for entry in found.entries] == ["abc"]
    assert sum("is a link" in line for line in found.skipped) == 2


def replace_a_result(folder, number):
    for _ in range(20):
        job = StoredJob(str(folder), "stitching", "abc")
        with job.running():
            shutil.rmtree(job.states, ignore_errors=True)
            job.states.mkdir(parents=True)
            (job.states / "state.txt").write_text(str(number))
            table = pd.DataFrame({"a": [number] * 3})
            job.write({}, {"scalars": {"a": float(number)}, "settings": {}, "provenance": {}}, {"table": table}, {})
            assert (job.states / "state.txt").read_text() == str(number), "another process was here"
            result = job.appear()
            assert result.scalars["a"] == number
            assert result.table["a"].tolist() == [number] * 3


@pytest.mark.ci_slow
def test_three_processes_replace_a_result_twenty_times(tmp_path):
    """A process must not remove the folder that the next one has made as soon as the lock was free."""
    forked = multiprocessing.get_context("fork")  # they need not import anything
    processes = [forked.Process(target=replace_a_result, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [path.name for path in (tmp_path / "stitching").iterdir()] == ["abc"]
    assert open_result(tmp_path / "stitching" / "abc").table.shape == (3, 1)


def test_a_limit_of_files_is_an_error_of_the_system(tmp_path):
    """torch ends an archive that it could not write by an error that hides the cause."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(OSError):
            write_state(tmp_path, "half", {"weights": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "no JSON object"),
        ("{", "Expecting property name"),
        ('{"a":' * 10**5 + "1" + "}" * 10**5, "inside one another"),
        ('{"a":' * 65 + "1" + "}" * 65, "inside one another"),
        ('{"a": "' + "x" * 1000 + '"}', "more than 100 bytes"),
    ],
)
def test_json_of_strangers_is_bounded(content, message, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "x.json", largest=100 if "100 bytes" in message else 2**25)


@pytest.mark.timeout(20)
def test_a_repeated_name_among_many_is_found_soon():
    """Counting every name in the list of all of them took a minute for half a megabyte."""
    names = [f'"{number}": 0' for number in range(60_000)]
    content = "{" + ", ".join([*names, names[-1]]) + "}"
    with pytest.raises(ValueError, match="the name 59999 twice"):
        json_object(content.encode(), "x.json")


def test_json_that_is_as_deep_as_configurations_is_read(tmp_path):
    (tmp_path / "x.json").write_text('{"a":' * 64 + "1" + "}" * 64)
    assert read_json(tmp_path / "x.json")


@pytest.mark.parametrize("linked", ["stitching", "stitching/abc"])
def test_a_finished_result_is_not_read_through_a_link(linked, tmp_path):
    """Lists say that links are not followed; the same job said "already done" and read what the link leads to."""
    store = tmp_path / "store"
    result_in(store)
    job = StoredJob(str(store), "stitching", "abc")
    assert job.result() is not None, "control"
    outside = tmp_path / "outside"
    (store / linked).rename(outside)
    (store / linked).symlink_to(outside)
    with pytest.raises(StoreError, match="is a link, and links inside a store are not followed; remove it"):
        job.result()
    through_a_link = tmp_path / "my-store"
    (store / linked).unlink()
    outside.rename(store / linked)
    through_a_link.symlink_to(store)
    assert StoredJob(str(through_a_link), "stitching", "abc").result() is not None, "the store itself may be a link"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "name", ["a/" * 60_000 + "x", "x" * 100_000, "a/" * 9 + "x", "/" * 50_000, "a/b" * 40_000 + "/x.csv"]
)
def test_a_name_of_many_folders_is_refused_before_they_are_made(name, tmp_path):
    """Of one name of 60,000 folders the names of all folders above it took 4 GB."""
    folder = result_in(tmp_path)
    written = json.loads((folder / "manifest.json").read_text())["files"]
    files = {**written, name: [1, "x"]}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"files": files, "digest": digest}))
    with pytest.raises(StoreError, match="no file of a result has the name") as refused:
        open_result(folder)
    assert len(str(refused.value)) < 1000
    assert len(search(tmp_path).skipped) == 1


@pytest.mark.parametrize(
    ("name", "size", "endings"),
    [
        ("result.json", 200 * 2**30, ()),
        ("result.json", 5 * 2**20, None),
        ("config.yaml", 200 * 2**30, (".yaml",)),
        ("table.csv", 200 * 2**30, None),
        ("table.csv", 200 * 2**30, ()),
    ],
)
def test_the_size_of_a_file_is_looked_at_before_its_bytes(name, size, endings, tmp_path, monkeypatch):
    """A sparse file of 200 GB takes no room on the disk, and minutes to read."""
    folder = result_in(tmp_path)
    os.truncate(folder / name, size)
    written = json.loads((folder / "manifest.json").read_text())["files"]
    files = {**written, name: [size, written[name][1]]}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"files": files, "digest": digest}))
    read = []

    def counted(path: Path) -> str:
        read.append(path.name)
        return "" if path.name == name else digest_of(path)

    monkeypatch.setattr("thinkalike.store.manifest.digest_of", counted)
    assert "bytes, and such a file has" in damage(folder, endings)
    assert name not in read


def test_a_table_that_is_too_large_for_a_list_is_read_by_none(tmp_path, monkeypatch):
    folder = result_in(tmp_path)
    monkeypatch.setattr("thinkalike.store.manifest.MOST_LISTED_BYTES", 4)
    read = []
    monkeypatch.setattr("thinkalike.store.manifest.digest_of", lambda path: read.append(path.name) or digest_of(path))
    assert damage(folder, (".csv",)) is None
    assert read == ["result.json"]
    assert damage(folder) is None
    assert "table.csv" in read, "where the result is opened, all of it is compared"


def test_a_state_belongs_to_one_job(tmp_path):
    """The tensors of two jobs may have the same shapes, so that one would resume from the weights of the other."""
    mine = tmp_path / "stitching" / "abc.partial" / "checkpoints"
    path = write_state(mine, "half", {"step": 1})
    assert read_state(path) == {"step": 1}, "control"
    strangers = {
        "another key": (tmp_path / "stitching" / "def.partial" / "checkpoints", "half"),
        "another kind": (tmp_path / "loss" / "abc.partial" / "checkpoints", "half"),
        "another name": (mine, "third"),
        "a training inside of it": (mine.parent / "sources" / "x" / "checkpoints", "half"),
    }
    for folder, name in strangers.values():
        other = write_state(folder, name, {"step": 2})
        swapped = path.with_name(f"half-9-{digest_of(other)[:16]}.pt")
        shutil.copyfile(other, swapped)
        assert newest_state(mine, "half") == swapped, "it is whole"
        with pytest.raises(StoreError, match="is the state of another job"):
            read_state(swapped)
        swapped.unlink()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "stitching", elsewhere / "stitching")
    assert read_state(newest_state(elsewhere / "stitching" / "abc.partial" / "checkpoints", "half")) == {"step": 1}
    torch.save({}, tmp_path / "empty")
    empty = mine / f"half-8-{digest_of(tmp_path / 'empty')[:16]}.pt"
    shutil.copyfile(tmp_path / "empty", empty)
    with pytest.raises(StoreError, match="of an older version; remove it"):
        read_state(empty)


def test_an_error_of_a_store_is_one_line(tmp_path):
    folder = result_in(tmp_path)
    (folder / "a\nb.csv").write_text("1")
    seal(folder)
    (folder / "a\nb.csv").unlink()
    with pytest.raises(StoreError, match="is missing") as refused:
        open_result(folder)
    assert "\n" not in str(refused.value)


def restate(folder: Path, **files: tuple[int, str]) -> None:
    """Write sizes and digests of further files into the manifest of a folder, as a stranger can."""
    entries = json.loads((folder / "manifest.json").read_text())["files"] | files
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"files": entries, "digest": digest}))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("names", [["extra.npz"], ["stitch.safetensors"], [f"t{n}.csv" for n in range(40)]])
@pytest.mark.parametrize("beginning", [b"", b"some bytes"])
def test_a_sparse_file_of_a_result_is_not_read(names, beginning, tmp_path):
    """One of 64 GiB takes no room on the disk, and minutes to read; so do many that are allowed one by one."""
    folder = result_in(tmp_path)
    size = 2**36 // len(names)
    if len(names) > 1:
        size = 2**24
    for name in names:
        (folder / name).write_bytes(beginning)
        os.truncate(folder / name, size)
    restate(folder, **{name: [size, "0" * 64] for name in names})
    before = time.perf_counter()
    if len(names) == 1:
        assert "it is a sparse file" in damage(folder)
        with pytest.raises(StoreError, match="sparse"):
            open_result(folder)
    else:
        assert "is damaged" in damage(folder)
    assert time.perf_counter() - before < 5


@pytest.mark.timeout(20)
def test_many_sparse_files_count_together(tmp_path, monkeypatch):
    folder = result_in(tmp_path)
    names = [f"t{number}.csv" for number in range(4)]
    for name in names:
        os.truncate(os.open(folder / name, os.O_CREAT | os.O_WRONLY), 2**20)
    digest = hashlib.sha256(bytes(2**20)).hexdigest()
    restate(folder, **{name: [2**20, digest] for name in names})
    assert damage(folder) is None, "control: few bytes may be holes, as some file systems make them of zeros"
    monkeypatch.setattr("thinkalike.store.manifest.MOST_BYTES_IN_HOLES", 3 * 2**20)
    assert "t3.csv is damaged: it is a sparse file" in damage(folder)


def test_one_file_of_many_names_is_read_once(tmp_path, monkeypatch):
    folder = result_in(tmp_path)
    names = [f"t{number}.csv" for number in range(9)]
    for name in names:
        os.link(folder / "table.csv", folder / name)
    size, digest = (folder / "table.csv").stat().st_size, digest_of(folder / "table.csv")
    restate(folder, **{name: [size, digest] for name in names})
    read = []
    monkeypatch.setattr("thinkalike.store.manifest.digest_of", lambda path: read.append(path.name) or digest_of(path))
    assert damage(folder) is None
    assert len({*names, "table.csv"} & {*read}) == 1


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_holes_has_none(error, tmp_path, monkeypatch):
    folder = result_in(tmp_path)

    def refuse(*_):
        raise OSError(error, "no holes here")

    monkeypatch.setattr("thinkalike.files.os.lseek", refuse)
    assert damage(folder) is None


@pytest.mark.timeout(20)
def test_a_sparse_state_is_not_resumed_from(tmp_path, caplog):
    write_state(tmp_path, "steps", {"step": 1})
    sparse = tmp_path / f"steps-2-{'0' * 16}.pt"
    sparse.touch()
    os.truncate(sparse, 2**36)
    assert newest_state(tmp_path, "steps").name.startswith("steps-1-")
    assert "it is sparse" in caplog.text
    assert not sparse.exists()


@pytest.mark.parametrize(
    "replace",
    [
        lambda file: file.unlink(),
        lambda file: file.rename(file.with_suffix(".old")),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
        lambda file: (file.unlink(), os.mkfifo(file)),
    ],
    ids=["deleted", "renamed", "folder", "link", "pipe"],
)
def test_a_result_without_its_manifest_is_named(replace, tmp_path):
    folder = result_in(tmp_path)
    (tmp_path / "stitching" / "def.partial").mkdir()
    assert search(tmp_path).skipped == [], "control: a job that runs has no manifest either"
    replace(folder / "manifest.json")
    content = search(tmp_path)
    assert content.entries == []
    (skipped,) = content.skipped
    assert f"{folder} is damaged: it has result.json, and manifest.json is no file there" in skipped


@pytest.mark.parametrize("date", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "10000-01-01", "soon"])
def test_a_date_beyond_the_calendar_is_said_with_its_file(date, tmp_path):
    folder = result_in(tmp_path)
    record = json.loads((folder / "result.json").read_text())
    record["provenance"]["date"] = date
    text = json.dumps(record)
    (folder / "result.json").write_text(text)
    restate(folder, **{"result.json": [len(text), hashlib.sha256(text.encode()).hexdigest()]})
    skipped = search(tmp_path).skipped
    assert len(skipped) == 1
    assert f"{folder / 'result.json'}" in skipped[0]
    assert f"its date {date} is not a date" in skipped[0]


def test_a_folder_changed_beyond_the_calendar_is_listed(tmp_path):
    folder = result_in(tmp_path)
    record = json.loads((folder / "result.json").read_text())
    record["provenance"].pop("date", None)
    text = json.dumps(record)
    (folder / "result.json").write_text(text)
    restate(folder, **{"result.json": [len(text), hashlib.sha256(text.encode()).hexdigest()]})
    os.utime(folder, (0, 10**11 * 4))
    if folder.stat().st_mtime < 253402300800:
        pytest.skip("this file system knows no year 10,000")
    assert len(search(tmp_path).entries) == 1


@pytest.mark.parametrize("order", ["penalty", "duration"])
def test_a_number_that_is_nan_comes_last_in_every_order(order, tmp_path):
    values = [3.0, math.nan, 1.0, math.nan, 2.0, -math.inf]
    entries = []
    for number, value in enumerate(values):
        entry = search_one(tmp_path / str(number), value)
        entries.append(replace(entry, seconds=value))
    ordered = selected(StoreContent(tmp_path, entries), Query(order=order))
    shown = [entry.seconds for entry in ordered]
    assert shown[:4] == [-math.inf, 1.0, 2.0, 3.0]
    assert all(map(math.isnan, shown[4:]))


def search_one(store: Path, penalty: float):
    """The entry of a list for the only result of a store."""
    result_in(store, penalty=penalty)
    return search(store).entries[0]
