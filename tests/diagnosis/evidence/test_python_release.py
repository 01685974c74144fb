# SPDX-License-Identifier: Apache-2.0
"""Names of the standard library and of pydantic that the job's Python, or its pydantic, does not have. Needs nothing; seconds."""

from __future__ import annotations

import re
import sys

import pytest

from harness.diagnosis.evidence.python_release import _TABLE
from harness.interpreter import find_new_module
from tests.support.tracebacks import diagnose_text, traceback_text


def read(code: str, error: str, release: str, package: str = "oddlib"):
    """The diagnosis of an import of a package under a release of Python."""
    return diagnose_text(
        traceback_text([(f"/env/lib/python{release}/site-packages/{package}/x.py", "<module>", code)], error)
    )


@pytest.mark.parametrize(
    ("code", "error", "release", "title"),
    [
        ("from typing import OrderedDict", "ImportError: cannot import name 'OrderedDict'", "3.6",
         "Python 3.6 is too old for `oddlib`: it has no `typing.OrderedDict`, which Python has from 3.7 on"),
        ("from enum import StrEnum", "ImportError: cannot import name 'StrEnum' from 'enum' (/env/lib/python3.8/enum.py)",
         "3.8", "it has no `enum.StrEnum`, which Python has from 3.11 on"),
        ("import tomllib", "ModuleNotFoundError: No module named 'tomllib'", "3.9", "no `tomllib`"),
        ("@functools.cache", "AttributeError: module 'functools' has no attribute 'cache'", "3.8", "`functools.cache`"),
        ("n.removeprefix('a')", "AttributeError: 'str' object has no attribute 'removeprefix'", "3.8", "`str.removeprefix`"),
        ("def f(a: list[int]):", "TypeError: 'type' object is not subscriptable", "3.8", "refuses the code"),
        ("def f(a: int | None):", "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'", "3.9", "from 3.10"),
        ("@dataclass(slots=True)", "TypeError: dataclass() got an unexpected keyword argument 'slots'", "3.9", "from 3.10"),
        ("import imp", "ModuleNotFoundError: No module named 'imp'", "3.12",
         "Python 3.12 is too new for `oddlib`: it no longer has `imp`, which Python 3.12 removed"),
        ("f = inspect.getargspec", "AttributeError: module 'inspect' has no attribute 'getargspec'", "3.12", "3.11 removed"),
    ],
)  # fmt: skip
def test_a_name_that_the_jobs_python_does_not_have(code, error, release, title):
    diagnosis = read(code, error, release)
    assert (diagnosis.cause, diagnosis.confidence) == ("LG228", "likely")
    assert title in diagnosis.title
    assert "pip install" not in diagnosis.change
    assert "conda create -n NAME python=3." in diagnosis.change


def test_a_python_that_has_the_name_is_not_blamed():
    error = "ImportError: cannot import name 'StrEnum' from 'enum' (/job/enum.py)"
    assert "too old" not in read("from enum import StrEnum", error, "3.11").title
    assert "too new" not in read("import imp", "ModuleNotFoundError: No module named 'imp'", "3.11").title


@pytest.mark.parametrize(
    ("line", "release", "words"),
    [("if (n := 3):", "3.7", "from 3.8 on"), ("match odd:", "3.9", "from 3.10 on"), ("match odd:", "3.10", "")],
)
def test_a_line_that_an_older_python_does_not_parse(line, release, words):
    log = f'Traceback (most recent call last):\n  File "/env/lib/python{release}/site-packages/odd/x.py", line 3\n'
    diagnosis = diagnose_text(f"{log}    {line}\n       ^\nSyntaxError: invalid syntax\n")
    assert (diagnosis.cause == "LG228") is bool(words)
    assert words in diagnosis.title
    assert (f"`{line}`" in diagnosis.title) is bool(words)


def test_the_names_are_those_of_the_running_python():
    for release, fields in list(_TABLE.items())[3:]:
        is_here = sys.version_info[:2] >= tuple(map(int, release.split(".")))
        for field, names in fields.items():
            modules = [name for name in names.split() if re.fullmatch(r"[a-z_0-9]+", name)] if field != "words" else []
            for name in modules:
                assert (find_new_module(name) is not None) is (is_here == (field == "new")), (release, name)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (("/job/x.py", "odd", "return self.model_dump()"), "AttributeError: 'OddConfig' object has no attribute 'model_dump'"),
        (None, "RuntimeError: no validator found for <class 'odd.Odd'>, see `arbitrary_types_allowed` in Config"),
    ],
)  # fmt: skip
def test_a_package_that_needs_pydantic_2(frame, error):
    diagnosis = diagnose_text(traceback_text([frame], error) if frame else f"{error}\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG222", "likely")
    assert "pydantic 1 is installed" in diagnosis.title


def test_compiled_files_of_pydantic_are_those_of_its_first_major_release():
    frame = 'Traceback (most recent call last):\n  File "pydantic/typing.py", line 3, in pydantic.typing.odd\n'
    diagnosis = diagnose_text(f"{frame}TypeError: issubclass() arg 1 must be a class\n")
    assert (diagnosis.cause, "too old for a class of settings" in diagnosis.title) == ("LG222", True)


def test_a_package_beyond_a_list_is_told_by_the_release_installed_here():
    error = "ImportError: cannot import name 'deprecated' from 'typing_extensions' (/env/typing_extensions.py)"
    assert "`typing_extensions` is too old for `oddlib`" in read("import x", error, "3.9").title
