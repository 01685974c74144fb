# SPDX-License-Identifier: Apache-2.0
"""Lock files that one process at a time may hold: `flock`, with the name of the holder inside for other processes.

The kernel releases the lock when its holder dies, so a lock is never stale on file systems that have `flock`. On those
that lack it, or keep it to one machine, the holder's name and the age of the file decide.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.file_io import parse_json, read_regular
from harness.hostinfo import machine

RUN_LOCK = "lock"
"""The file of a run directory that its supervisor holds, or rank 0 of a run that was started by hand."""
STALE_AFTER_SECONDS = 120.0
"""On a file system without `flock`, a holder on another machine counts as alive for so long after it last touched."""
_MAX_BYTES = 4096
_MAX_TRIES = 20
"""Against a user who takes each new file at once."""
_NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock: `host` is the machine's name and boot id, `ticks` its start time."""

    host: str
    pid: int
    ticks: int
    what: str = ""

    @staticmethod
    def this_process(what: str = "") -> LockHolder:
        """This process."""
        return LockHolder(machine.host_identity(), os.getpid(), machine.process_start_ticks(os.getpid()) or 0, what)

    @property
    def is_alive(self) -> bool | None:
        """Whether the process runs; None when it is on another machine, which this one cannot see."""
        if self.host != machine.host_identity():
            return None
        return machine.process_start_ticks(self.pid) == self.ticks

    @property
    def supervisor_id(self) -> str:
        """The value of the variable HARNESS_SUPERVISOR for this process."""
        return f"{self.host}:{self.pid}:{self.ticks}"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition(':')[0]}" + (f", {self.what}" if self.what else "")


class LockHeld(Exception):
    """Another process holds the lock; `holder` is None when the file does not name it."""

    def __init__(self, path: Path, holder: LockHolder | None) -> None:
        self.path, self.holder = path, holder
        super().__init__(f"{path} is held by {holder or 'another process'}")


class _HeldByReader(LockHeld):
    """Another user, who may only read the file, holds it; whoever it names has ended."""


class Lock:
    """A lock that this process holds until `release` or until it dies. Children do not inherit it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor, self._touched_at = path, descriptor, time.monotonic()

    @classmethod
    def acquire(cls, path: Path, what: str = "", *, private: bool = False) -> Lock:
        """Hold `path` from now on. `private`: no other user can open the file, and so hold it; others then cannot see
        that it is held either. Raises LockHeld, and OSError when the file cannot be created or opened.
        """
        for seconds in (0.05, 0.2):  # `current_holder` of another process holds it for an instant
            with contextlib.suppress(LockHeld):
                return cls._acquire(path, what, private=private)
            time.sleep(seconds)
        return cls._acquire(path, what, private=private)

    @classmethod
    def _acquire(cls, path: Path, what: str, *, private: bool) -> Lock:
        for _ in range(_MAX_TRIES):
            lock = cls._try_acquire(path, what, private=private)
            if lock is not None:
                return lock
        raise LockHeld(path, None)

    @classmethod
    def _try_acquire(cls, path: Path, what: str, *, private: bool) -> Lock | None:
        """The lock; None when the file is a new one since our opening: its last holder removed it, or we did because
        another user, who may only read it, holds it.
        """
        # In a folder that others can write to, a link must not choose which file of ours is emptied.
        mode = 0o600 if private else 0o666
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            if private and status.st_uid == os.geteuid():
                os.fchmod(descriptor, mode)  # an earlier release made it for all to read
            _acquire_flock(path, descriptor)
            if _is_same_file(path, descriptor):
                lock = cls(path, descriptor)
                lock._write_holder(LockHolder.this_process(what))
                return lock
        except _HeldByReader as held:
            try:
                _remove_from_readers(path, descriptor, held)
            finally:
                os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def touch(self) -> None:
        """Show other machines that the holder is alive, where the disk lets it; may be called as often as one likes."""
        if time.monotonic() - self._touched_at > STALE_AFTER_SECONDS / 4:
            self._touched_at = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)

    def release(self) -> None:
        """Release the lock. The file goes while it is still held, so that no new holder's file can be removed; one that
        cannot be removed is held by nobody.
        """
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _write_holder(self, holder: LockHolder) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, (json.dumps(asdict(holder)) + "\n").encode(), 0)


def read_holder(path: Path) -> LockHolder | None:
    """The holder that the file names, whether or not that process is still alive; None when it names none."""
    try:
        raw = parse_json(read_regular(path, _MAX_BYTES))
        return LockHolder(str(raw["host"]), int(raw["pid"]), int(raw["ticks"]), str(raw.get("what", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def current_holder(path: Path) -> LockHolder | None:
    """The process that holds the lock now; None when none does. Acquires nothing."""
    try:
        # O_NONBLOCK: a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        _acquire_flock(path, descriptor, fcntl.LOCK_SH)  # many may look at once
    except _HeldByReader:
        return None
    except LockHeld as held:
        return held.holder or LockHolder("another machine", 0, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _acquire_flock(path: Path, descriptor: int, kind: int = fcntl.LOCK_EX) -> None:
    """Take the kernel's lock, and check that no other machine holds it. Raises LockHeld."""
    holder = read_holder(path)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        shared = machine.is_on_network_filesystem(path)
    except BlockingIOError:
        holder = read_holder(path)
        is_unclaimed = holder is None or holder.is_alive is False
        kind_of_error = _HeldByReader if is_unclaimed and _is_held_by_readers(os.fstat(descriptor)) else LockHeld
        raise kind_of_error(path, holder) from None
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        shared = True
    if not shared or holder is None or holder.pid == os.getpid():
        return
    if holder.is_alive or (holder.is_alive is None and time.time() - path.stat().st_mtime < STALE_AFTER_SECONDS):
        raise LockHeld(path, holder)


def _is_held_by_readers(status: os.stat_result) -> bool:
    """Do only processes of users hold a lock file of ours who may read it, never write it? The kernel lets them."""
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    try:
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131074 0 EOF
        rows = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
        pids = [int(row[4]) for row in rows if row[5].rpartition(":")[2] == str(status.st_ino)]
        return bool(pids) and all(_effective_user(pid) not in (0, status.st_uid) for pid in pids)
    except (OSError, ValueError, IndexError):
        return False


def _remove_from_readers(path: Path, descriptor: int, held: LockHeld) -> None:
    """Remove the file; its readers keep their lock on what nobody asks any more. Raises LockHeld where they also keep
    us from that.
    """
    try:
        fcntl.lockf(
            descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
        )  # one of our processes at a time: the next finds a new file
    except OSError:
        raise LockHeld(path, held.holder) from None
    if _is_same_file(path, descriptor):
        path.unlink(missing_ok=True)


def _effective_user(pid: int) -> int:
    """Raises OSError for a process that has ended or is hidden, and ValueError."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return int(next(line for line in lines if line.startswith("Uid:")).split()[2])


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        path_status = path.stat()
    except OSError:
        return False
    open_status = os.fstat(descriptor)
    return (path_status.st_dev, path_status.st_ino) == (open_status.st_dev, open_status.st_ino)
