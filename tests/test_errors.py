"""What libraries and the operating system say, in one line."""

import errno
import json
import zlib

import pytest

from thinkalike.errors import one_line, reason_in_words


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "Permission denied: '/a/b'"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError(errno.EXDEV, "Invalid cross-device link", "a", None, "b"), "Invalid cross-device link: 'a' -> 'b'"),
        (OSError(errno.ENOSPC, "the state cannot be written"), "the state cannot be written"),
    ],
)
def test_an_error_of_the_operating_system_is_its_sentence(error, line):
    assert one_line(error) == line
    assert reason_in_words(error) == line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("loss"), "KeyError: 'loss'"),
        (zlib.error("incorrect header check"), "error: incorrect header check"),
        (OSError("cannot open the file"), "OSError: cannot open the file"),
        (json.JSONDecodeError("Expecting value", "x", 0), "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_an_error_of_a_library_has_the_name_of_its_class(error, line):
    assert reason_in_words(error) == line
