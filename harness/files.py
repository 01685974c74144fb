"""Writing a file so that it is either the old one or the new one, never half of it.

`write_atomically` is for files of a user's, whose links and modes it respects; `replace_file` for a run's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write `text` as UTF-8 beside `path`, flush it to the disk, then rename. Raises OSError; the old file stays
    then.

    A link is followed, and the mode of the old file kept. What is there and is no regular file (a device, a folder) is
    never replaced: that is an OSError.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "it is there and is not a regular file")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(_mode(path))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """The old file's permissions, or those that any new file gets."""
    if path.exists():
        return path.stat().st_mode & 0o7777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace `path` by a file with this text: readers see the old or the new; `durable`: also after a power cut.

    Raises OSError; the old file stays then, and nothing beside it.
    """
    # Threads of one process, and processes with one number on two hosts, may write the same file at once.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # a name that is too long cannot be removed either
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
