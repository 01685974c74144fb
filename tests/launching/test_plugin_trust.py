# SPDX-License-Identifier: Apache-2.0
"""`harness launch` and the user's own code: refused unless allowed, then with the sha256 of the file in the plan."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.launching.setup.plugin_trust import verify_plugin_allowed


def test_a_spec_without_code_needs_no_leave(tmp_path: Path) -> None:
    assert verify_plugin_allowed(None, tmp_path, allow_local_code=False) is None


def test_code_is_refused_until_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(UserError) as refused:
        verify_plugin_allowed("mine.py", tmp_path, allow_local_code=False)
    finding = refused.value.findings[0]
    assert (finding.gate, finding.key) == ("MD157", "plugins.file")
    assert "--allow-local-code" in finding.fix.title
    assert verify_plugin_allowed("mine.py", tmp_path, allow_local_code=True) == hashlib.sha256(b"x = 1\n").hexdigest()


def test_code_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        verify_plugin_allowed("mine.py", tmp_path, allow_local_code=True)
    assert refused.value.findings[0].gate == "MD158"
