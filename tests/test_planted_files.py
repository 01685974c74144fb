# SPDX-License-Identifier: Apache-2.0
"""Whose files are trusted: the rule for a user without rights, played by another number of this process's user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import planted_files
from harness.planted_files import TRUSTED_ACCOUNTS, find_foreign_owner_below, find_planted, is_trusted_owner
from tests.support.other_user import MALLORY, needs_root, shared_folder

pytestmark = needs_root
ALICE, TEAM = 54322, 54400


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of root's in `/tmp`, while this process says that it is alice."""
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    monkeypatch.setattr(planted_files, "_new_file_owner", lambda _: None)
    with shared_folder() as folder:
        yield folder


def make(path: Path, owner: int, mode: int, group: int | None = None) -> Path:
    path.mkdir(parents=True)
    os.chown(path, owner, owner if group is None else group)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("owner", "mode", "group", "reason"),
    [
        (ALICE, 0o755, None, None),
        (0, 0o755, None, None),  # an image's cache in a container
        (ALICE, 0o775, None, None),  # umask 002 where each user has a group
        (ALICE, 0o775, 0, None),  # containers that give any user the group of root
        (ALICE, 0o775, TEAM, "the group 54400"),
        (ALICE, 0o757, None, "every user"),
        (ALICE, 0o1777, None, "every user"),
        (0, 0o775, TEAM, "the group 54400"),
        (MALLORY, 0o700, None, "another user, 54321"),
        (65534, 0o755, None, "another user, nobody"),
    ],
)
def test_the_folder_itself(shared: Path, owner: int, mode: int, group: int | None, reason: str | None) -> None:
    found = find_planted(make(shared / "x", owner, mode, group))
    assert (reason in found.reason) if found and reason else found is reason


@pytest.mark.parametrize(
    ("owner", "mode", "is_fine"),
    [
        (ALICE, 0o755, True),
        (65534, 0o755, True),  # root's, in a container that runs without root
        (65534, 0o775, False),
        (0, 0o1777, True),
        (0, 0o777, False),
        (MALLORY, 0o755, False),
        (MALLORY, 0o1777, False),
    ],
)
def test_a_folder_above(shared: Path, owner: int, mode: int, is_fine: bool) -> None:
    make(shared / "above", owner, mode)
    make(shared / "above" / "x", ALICE, 0o755)
    assert (find_planted(shared / "above" / "x") is None) is is_fine
    assert (find_planted(shared / "above" / "not" / "yet") is None) is is_fine


def test_links(shared: Path) -> None:
    real = make(shared / "real" / "x", ALICE, 0o755)
    for name, target in (("one", "two/x"), ("two", str(shared / "real"))):
        (shared / name).symlink_to(target)
        os.chown(shared / name, ALICE, ALICE, follow_symlinks=False)
    assert find_planted(shared / "one") is None
    os.chown(shared / "two", MALLORY, MALLORY, follow_symlinks=False)
    found = find_planted(shared / "one")
    assert found is not None
    assert found.path == shared / "two"
    (shared / "loop").symlink_to("loop")
    assert "too many" in str(find_planted(shared / "loop"))
    assert find_planted(real) is None


def test_a_file_system_that_gives_new_files_another_owner(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(shared / "nfs", 65534, 0o755)
    assert find_foreign_owner_below(folder) is not None
    monkeypatch.setattr(planted_files, "_new_file_owner", lambda _: (65534, folder.stat().st_dev))
    assert find_foreign_owner_below(folder) is None
    assert find_planted(folder) is None


@pytest.mark.parametrize("accounts", ["nobody", "65534", " x , nobody", "@nogroup", "@65534", "*"])
def test_trusted_accounts(accounts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_trusted_owner(65534)
    monkeypatch.setenv(TRUSTED_ACCOUNTS, accounts)
    assert is_trusted_owner(65534)
    assert is_trusted_owner(MALLORY) is (accounts == "*")


def test_trusted_groups(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(shared / "team", 0, 0o2775, TEAM)
    found = find_planted(folder)
    assert found is not None
    finding = found.to_finding("XX000", "it would have been used", "do without")
    monkeypatch.setenv(TRUSTED_ACCOUNTS, found.account)
    assert find_planted(folder) is None
    assert f"export {TRUSTED_ACCOUNTS}='@{TEAM}'" in finding.notes[1]
