# SPDX-License-Identifier: Apache-2.0
"""The older one of two packages, by the sources that are installed here. Needs nothing; a second."""

from __future__ import annotations

import pytest

from harness.diagnosis.evidence import release_pair
from harness.hostinfo.installed_packages import Installation
from tests.support.tracebacks import diagnose_text, traceback_text

_SOURCES = {
    "accelerate": "from .odd import Prepared, odd_helper\n",
    "torch.odd": "from .below import *\n",
    "torch.odd.below": "def _odd_gather(): ...\n",
}
_DEFINITIONS = """
class Prepared:
    def other(self, odd_other=1): ...

    def __init__(self, *, odd_flag=1): ...

def odd_helper(model, odd_keep): ...
"""


@pytest.fixture(autouse=True)
def _installed(monkeypatch, tmp_path):
    (tmp_path / "odd.py").write_text(f"{_DEFINITIONS}\nif self.optimizer.odd_skipped: pass\n")
    installed = {"accelerate": Installation("accelerate", tmp_path, "1.9.0")}
    monkeypatch.setattr(release_pair, "read_module_source", _SOURCES.get)
    monkeypatch.setattr(release_pair, "find_new_module", _SOURCES.get)
    monkeypatch.setattr(release_pair, "find_version", lambda _: "1.9.0")
    monkeypatch.setattr(release_pair, "find_installation", installed.get)


def _ask(error, file="transformers/trainer.py"):
    return diagnose_text(traceback_text([("/w/run.py", "<module>", "go()"), (file, "build", "x = y(1)")], error))


@pytest.mark.parametrize(
    ("error", "name", "called"),
    [
        ("ImportError: cannot import name 'odd_helper' from 'accelerate' (/x/__init__.py)", "odd_helper", "accelerate"),
        ("AttributeError: module 'torch.odd' has no attribute '_odd_gather'", "_odd_gather", "torch"),
        ("ModuleNotFoundError: No module named 'torch.odd'", "odd", "torch"),
        ("TypeError: Prepared.__init__() got an unexpected keyword argument 'odd_flag'", "odd_flag", "accelerate"),
        ("TypeError: odd_helper() got an unexpected keyword argument 'odd_keep'", "odd_keep", "accelerate"),
    ],
)
def test_a_name_that_the_installed_release_has_was_asked_of_an_older_one(error, name, called):
    diagnosis = _ask(error)
    assert diagnosis.cause in ("LG089", "LG227")
    assert f"`{called}` is too old for `transformers`: it has no `{name}`" in diagnosis.title
    assert f"`pip install -U {called}`" in diagnosis.change


@pytest.mark.parametrize(
    "error",
    [
        "ImportError: cannot import name 'odd_gone' from 'accelerate' (/x/__init__.py)",
        "TypeError: Prepared.__init__() got an unexpected keyword argument 'odd_gone'",
        "TypeError: odd_helper() got an unexpected keyword argument 'odd_flag'",
        "AttributeError: module 'torch.odd' has no attribute 'odd_gone'",
    ],
)
def test_nothing_is_said_of_a_name_that_no_installed_release_has(error):
    assert "too old for" not in _ask(error).title


def test_a_package_is_not_too_old_for_itself_nor_where_the_log_names_a_newer_one():
    error = "ImportError: cannot import name 'odd_helper' from 'accelerate' (/x/__init__.py)"
    assert "too old" not in _ask(error, "accelerate/state.py").title
    text = traceback_text([("transformers/trainer.py", "build", "x")], error)
    assert "too old for" not in diagnose_text(f"accelerate version: 1.10.0\n{text}").title
    assert "too old for" in diagnose_text(f"accelerate version: 1.8.2\n{text}").title


def test_who_reads_an_attribute_of_deepspeeds_optimizer_is_found_without_frames():
    text = "AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute '{}'\n"
    diagnosis = diagnose_text(text.format("odd_skipped"))
    assert (diagnosis.cause, "`accelerate` asks DeepSpeed's" in diagnosis.title) == ("LG227", True)
    assert diagnose_text(text.format("odd_other")).cause == "LG149"
