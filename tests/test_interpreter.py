# SPDX-License-Identifier: Apache-2.0
"""The search path of a worker, and its imports."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from harness.interpreter import freeze_imports, remove_repeated_root


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (["/root", "/lib"], ["/root", "/lib"]),
        (["/root", "/lib", "/root"], ["/lib", "/root"]),
        (["/root", "/lib", "/nowhere/../root"], ["/lib", "/nowhere/../root"]),
    ],
)
def test_an_installed_package_does_not_precede_the_standard_library(
    monkeypatch: pytest.MonkeyPatch, path: list[str], left: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(path))
    remove_repeated_root()
    assert sys.path == left


def test_a_link_to_the_folder_is_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "real"), "/lib", str(tmp_path / "link")])
    remove_repeated_root()
    assert sys.path == ["/lib", str(tmp_path / "link")]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_later_collections_leave_out_what_was_imported(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with freeze_imports():
            assert not gc.isenabled()
            imported = [["a module"]]
        assert gc.isenabled() is is_enabled
        assert not any(each is imported for each in gc.get_objects())
    finally:
        (gc.enable if was_enabled else gc.disable)()
