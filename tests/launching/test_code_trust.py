# SPDX-License-Identifier: Apache-2.0
"""`harness launch` and code that a spec chooses: refused unless allowed, and named where it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.launching.setup.code_trust import AllowedCode, verify_code_allowed
from harness.spec.run_spec import RunSpec


def spec(**sections: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate(sections)


def test_a_spec_without_code_needs_no_leave(tmp_path: Path) -> None:
    assert verify_code_allowed(spec(), tmp_path, allow_local_code=False) == AllowedCode()


def test_a_plugin_is_refused_until_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(UserError) as refused:
        verify_code_allowed(spec(plugins={"file": "mine.py"}), tmp_path, allow_local_code=False)
    finding = refused.value.findings[0]
    assert (finding.gate, finding.key) == ("MD157", "plugins.file")
    assert "--allow-local-code" in finding.fix.title
    allowed = verify_code_allowed(spec(plugins={"file": "mine.py"}), tmp_path, allow_local_code=True)
    digest = hashlib.sha256(b"x = 1\n").hexdigest()
    assert allowed == AllowedCode((f"`plugins.file`: `mine.py`, sha256 {digest}",), digest)


def test_a_plugin_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        verify_code_allowed(spec(plugins={"file": "mine.py"}), tmp_path, allow_local_code=True)
    assert refused.value.findings[0].gate == "MD158"


def test_code_of_a_model_is_refused_until_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/modeling_mine.py").write_text("")
    own = spec(model={"name_or_path": "m", "trust_remote_code": True})
    with pytest.raises(UserError) as refused:
        verify_code_allowed(own, tmp_path, allow_local_code=False)
    assert (refused.value.findings[0].gate, refused.value.findings[0].key) == ("MD157", "model.trust_remote_code")
    (sentence,) = verify_code_allowed(own, tmp_path, allow_local_code=True).sentences
    assert "`m/modeling_mine.py`, sha256 " in sentence
    hub = spec(model={"name_or_path": "a/b", "revision": "0a" * 20, "trust_remote_code": True})
    assert "0a" * 20 in verify_code_allowed(hub, tmp_path, allow_local_code=True).sentences[0]


def test_variables_that_choose_code_are_named(tmp_path: Path) -> None:
    own = spec(launch={"env": {"PYTHONPATH": "./lib", "X": "1"}})
    (sentence,) = verify_code_allowed(own, tmp_path, allow_local_code=True).sentences
    assert sentence.startswith("`launch.env.PYTHONPATH`: ")
