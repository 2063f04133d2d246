"""The digest of a large file is remembered for as long as the file is what it was, and never longer."""

import hashlib
import json
import os
import shutil

import pytest

from thinkalike import digests
from thinkalike.digests import digest_of, remembered_digest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, in which every file is large."""
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "LARGE", 10)
    monkeypatch.setattr(digests, "_known", {})
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
    monkeypatch.setattr(digests, "_known", {})


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
