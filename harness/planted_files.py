# SPDX-License-Identifier: Apache-2.0
"""Files that another user of a shared host may have planted: in `/tmp`, on a scratch disk, in a project folder.

A file is trusted when root, this user, or an account in `HARNESS_TRUSTED_ACCOUNTS` owns it. On a file system that gives
our new files another owner, as NFS with root squash does, that owner is trusted too.

`find_foreign_owner` asks for the owner alone, which is enough for data. `find_planted` also asks who may write there
and who may replace a folder above: it guards what runs as code.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from harness.findings import Finding, Fix

TRUSTED_ACCOUNTS = "HARNESS_TRUSTED_ACCOUNTS"
"""The variable: names or numbers of users, and of groups after `@`, with commas between them; `*` is everybody."""
_NOBODY = 65534
"""The kernel's owner of files whose owner it does not know, as root's in a container that runs without root."""
_MAX_LINKS = 40
_PRIVATE = stat.S_IXGRP | stat.S_IXOTH
"""Without these bits nobody else reaches anything in a folder, however it may be written."""


class PlantedFile(NamedTuple):
    """A file or folder that another user may have written: its place, the reason, and the account that wrote it or may
    write it, as `HARNESS_TRUSTED_ACCOUNTS` names it.
    """

    path: Path
    reason: str
    account: str
    is_own: bool = False
    """Is it this user's file, which others may write?"""

    def __str__(self) -> str:
        return f"`{self.path}` {self.reason}"

    def to_finding(self, gate: str, effect: str, fix: str, *, key: str = "") -> Finding:
        """The error for it. `effect`: what would have happened; `fix`: how to do without the file."""
        trust = f"if you trust that account: export {TRUSTED_ACCOUNTS}='{self.account}'"
        return Finding(gate, "error", str(self), key=key, notes=(effect, trust), fix=Fix(fix))


def is_trusted_owner(uid: int) -> bool:
    """Is a user this one, root, or an account of `HARNESS_TRUSTED_ACCOUNTS`?"""
    if uid in (os.geteuid(), 0):
        return True
    accounts = _read_accounts(os.environ)
    return "*" in accounts or any(_names_user(account, uid) for account in accounts)


def find_foreign_owner(path: Path, *, trusted: int | None = None) -> PlantedFile | None:
    """The path itself where a user owns it whom nobody trusts; `trusted` is one more user. A link is not followed.
    None for a file that does not exist.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    if status.st_uid == trusted or is_trusted_owner(status.st_uid) or _is_our_new_owner(path, status):
        return None
    return _owned_by_another(path, status)


def find_foreign_owner_below(folder: Path, *, trusted: int | None = None) -> PlantedFile | None:
    """The folder itself, or the first entry below it, that `find_foreign_owner` finds. No foreign folder is entered."""
    return next((found for path in _walk(folder) if (found := find_foreign_owner(path, trusted=trusted))), None)


def find_planted(path: Path) -> PlantedFile | None:
    """The first of a path's folders, links and the path itself that another user owns or may replace; what does not
    exist yet is left out. Others may write to a folder above with the sticky bit, never to the path itself.
    """
    shielded: dict[str, bool] = {}
    try:
        for place, parent, is_last in _resolve(path):
            status = os.lstat(place)
            is_above = not is_last or stat.S_ISLNK(status.st_mode)
            above = shielded.get(parent, False)
            found = _describe(Path(place), status, is_above=is_above, shielded=above)
            if found is not None:
                return found
            shielded[place] = above or (stat.S_ISDIR(status.st_mode) and not status.st_mode & _PRIVATE)
    except FileNotFoundError:
        return None
    except OSError as error:
        return PlantedFile(path, f"cannot be looked up: {(error.strerror or str(error)).lower()}", "*")
    return None


def find_planted_below(folder: Path) -> PlantedFile | None:
    """The first problem of `find_planted` with a folder or with anything below it."""
    return next((found for path in _walk(folder) if (found := find_planted(path))), None)


def _walk(folder: Path) -> Iterator[Path]:
    """The folder and everything below it, each folder before its content, which is read lazily."""
    pending = [folder]
    while pending:
        current = pending.pop()
        yield current
        try:
            if stat.S_ISDIR(current.lstat().st_mode):
                pending += current.iterdir()
        except OSError:
            continue


def _resolve(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Each folder and link on the way to a path, the folder with it, and whether it is the last. Raises OSError."""
    pending, current, links = _parts_reversed(os.path.abspath(path)), "/", 0  # noqa: PTH100 - links stay
    yield "/", "", False
    while pending:
        part = pending.pop()
        if part == "..":
            current = os.path.dirname(current)  # noqa: PTH120
            continue
        place = os.path.join(current, part)  # noqa: PTH118
        yield place, current, not pending
        if os.path.islink(place):  # noqa: PTH114
            links += 1
            if links > _MAX_LINKS:
                raise OSError(40, "too many levels of symbolic links", str(path))
            target = os.readlink(place)  # noqa: PTH115
            current = "/" if target.startswith("/") else current
            pending += _parts_reversed(target)
        else:
            current = place


def _parts_reversed(path: str) -> list[str]:
    return [part for part in path.split("/")[::-1] if part not in ("", ".")]


def _describe(path: Path, status: os.stat_result, *, is_above: bool, shielded: bool) -> PlantedFile | None:
    mode, is_link = status.st_mode, stat.S_ISLNK(status.st_mode)
    may_write = mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_link
    is_unknown = is_above and status.st_uid == _NOBODY and not may_write
    if not (is_unknown or is_trusted_owner(status.st_uid) or _is_our_new_owner(path, status)):
        return _owned_by_another(path, status)
    if is_link or shielded or (is_above and mode & stat.S_ISVTX):
        return None
    accounts = _read_accounts(os.environ)
    if mode & stat.S_IWOTH and "*" not in accounts:
        return PlantedFile(path, "can be written by every user of this host", "*", status.st_uid == os.geteuid())
    if mode & stat.S_IWGRP and not _is_trusted_group(status, accounts):
        name = _group_name(status.st_gid)
        return PlantedFile(path, f"can be written by the group {name}", f"@{name}", status.st_uid == os.geteuid())
    return None


def _owned_by_another(path: Path, status: os.stat_result) -> PlantedFile:
    name = _user_name(status.st_uid)
    return PlantedFile(path, f"belongs to another user, {name}", name)


def _is_our_new_owner(path: Path, status: os.stat_result) -> bool:
    """Does the file system give our new files there this owner, whoever we are?"""
    folder = path if stat.S_ISDIR(status.st_mode) else path.parent
    return _new_file_owner(folder) == (status.st_uid, status.st_dev)


@cache
def _new_file_owner(folder: Path) -> tuple[int, int] | None:
    """The owner and the device of a new file; None where this user cannot make one."""
    import tempfile  # lazily: most callers find nothing and need none

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_uid, status.st_dev


def _is_trusted_group(status: os.stat_result, accounts: frozenset[str]) -> bool:
    """Root's group, one of `HARNESS_TRUSTED_ACCOUNTS`, or the owner's own group, which has no other member."""
    gid = status.st_gid
    if gid == 0 or "*" in accounts or any(_group_id(account) == gid for account in accounts):
        return True
    owner = _user_name(status.st_uid)
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == status.st_uid
    return (group.gr_name == owner or gid == status.st_uid) and set(group.gr_mem) <= {owner}


def _read_accounts(environ: Mapping[str, str]) -> frozenset[str]:
    return frozenset(filter(None, (name.strip() for name in environ.get(TRUSTED_ACCOUNTS, "").split(","))))


def _names_user(account: str, uid: int) -> bool:
    """Is the user this account, or a member of this group?"""
    if not account.startswith("@"):
        return account in (str(uid), _user_name(uid))
    try:
        user = pwd.getpwuid(uid)
        return _group_id(account) in os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError):
        return False


def _group_id(account: str) -> int | None:
    """The number of a group `@name` or `@number`; None for anything else."""
    name = account.removeprefix("@")
    if name == account:
        return None
    try:
        return int(name) if name.isascii() and name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
