# SPDX-License-Identifier: Apache-2.0
"""The message that CONTRIBUTING.md adds works as it is printed. Needs nothing; milliseconds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.diagnosis import catalogue
from harness.diagnosis.catalogue import all_causes, all_rows, causes_by_id, parse_causes, parse_rows
from harness.diagnosis.rules import line_matcher
from tests.support.tracebacks import diagnose_text

SECTION = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a message")[2]
TEXT = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 8, in <module>
[rank1]:     engine.backward(loss)
[rank1]:   File "/x/site-packages/deepspeed/runtime/zero/stage3.py", line 12, in reduce
[rank1]:     raise ValueError(message)
[rank1]: ValueError: cannot reduce a bucket of 512 elements
"""


@pytest.fixture
def _guide(monkeypatch):
    """The row and the cause of the guide, next to all others."""
    row_text, cause_text = re.findall(r"```text\n(.*?)```", SECTION, re.DOTALL)
    rows, (cause,) = tuple(parse_rows(row_text)), parse_causes(cause_text)
    known, causes = all_rows(), (*all_causes(), cause)
    by_id = {**causes_by_id(), cause.id: cause}
    monkeypatch.setattr(line_matcher, "all_rows", lambda: (*known, *rows))
    for module in (catalogue, line_matcher):
        monkeypatch.setattr(module, "all_causes", lambda: causes)
        monkeypatch.setattr(module, "causes_by_id", lambda: by_id)
    _forget_rules()
    yield
    _forget_rules()


def _forget_rules():
    for value in vars(line_matcher).values():
        if hasattr(value, "cache_clear") and value.__module__ == line_matcher.__name__:
            value.cache_clear()


@pytest.mark.usefixtures("_guide")
def test_the_row_of_the_guide_is_a_message():
    diagnosis = diagnose_text(TEXT)
    assert (diagnosis.cause, diagnosis.confidence, diagnosis.rank) == ("LG999", "likely", 1)
    assert diagnosis.title == "a bucket of 512 elements is larger than the buffer in which ZeRO-3 reduces it"
    assert diagnosis.change == "set `zero_optimization.reduce_bucket_size` to 512 or more"


def test_without_it_the_message_is_unknown():
    assert diagnose_text(TEXT).cause == ""
