# SPDX-License-Identifier: Apache-2.0
"""Bounded reads of untrusted files, and atomic writes.

`read_regular` is for every file that somebody else may have written. `write_output_file` is for what a user names after
`--output`, which may be a pipe; `write_atomically` is for a user's files, whose links and modes it respects;
`replace_file` is for files of a run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from harness.printed_text import unguarded

_MAX_DEPTH = 64
"""Levels of JSON; what DeepSpeed, transformers and the harness write has at most ten."""


def read_regular(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """The bytes of a regular file of at most `limit` bytes. Never blocks, and never reads without a bound.

    Raises OSError: EINVAL for a pipe, a device, a socket or a folder, EFBIG for a larger file, ELOOP for a link where
    `follow` is false, and what opening and reading raise. Raises ValueError for a name that no file can have.
    """
    with open_regular(path, follow=follow) as file:
        is_larger = os.fstat(file.fileno()).st_size > limit  # a sparse file costs its owner nothing
        content = b"" if is_larger else file.read(limit + 1)
    if content is None:  # `/proc/kmsg` is a regular file that waits
        raise OSError(errno.EAGAIN, "nothing to read yet", str(path))
    if is_larger or len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit:,} bytes", str(path))
    return content


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """A regular file, open for reading piece by piece. Never blocks.

    Raises OSError: EINVAL for what is no regular file, ELOOP for a link where `follow` is false, and what opening
    raises. Raises ValueError for a name that no file can have.
    """
    # Without O_NONBLOCK the open of a pipe waits for a writer; it changes nothing for a regular file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def parse_json(text: str | bytes) -> Any:
    """The value in a JSON text. Raises ValueError for any other text, and for one nested deeper than anything that
    programs write, because a walk through the value would exceed the stack.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    brackets = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if brackets > _MAX_DEPTH and _is_deeper_than(value, _MAX_DEPTH):
        raise ValueError("nested too deeply")
    return value


def describe_json_error(error: json.JSONDecodeError) -> str:
    """The fault without its place, for a sentence that goes on with it: "unterminated string"."""
    return error.msg.lower().removesuffix(" at").removesuffix(" starting")


def _is_deeper_than(value: Any, levels: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return children is not None and (not levels or any(_is_deeper_than(v, levels - 1) for v in children))


def write_output_file(path: Path, text: str) -> None:
    """Write `text` to a file that the user named: to a pipe or a character device as it is, such as `/dev/stdout` or
    `/dev/null`, and to a regular file atomically. Raises OSError.
    """
    stream = {"/dev/stdout": sys.stdout, "/dev/stderr": sys.stderr}.get(str(path))
    if stream is not None:  # also where a shell redirected it to a file, which a rename would cut off from the shell
        unguarded(stream).write(text)
        stream.flush()
    elif _is_pipe_or_device(path):
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
    else:
        write_atomically(path, text)


def _is_pipe_or_device(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def write_atomically(path: Path, text: str, *, private: bool = False) -> None:
    """Write `text` as UTF-8 to a temporary file next to `path`, flush it to the disk, then rename. Raises OSError, and
    then the old file stays.

    It follows a link and keeps the mode of the old file; a `private` one has 0600. It never replaces a device or a
    folder: that is an OSError.
    """
    import tempfile  # lazily: `validate-config` imports this module and writes nothing

    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "it exists and is not a regular file")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o600 if private else _file_mode(path))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _file_mode(path: Path) -> int:
    """The old file's permissions, or those that any new file gets."""
    return path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~read_umask()


def read_umask() -> int:
    """The permissions that this process withholds from new files."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def apply_umask(folder: Path) -> None:
    """Give a folder and everything below it the permissions of new files: some libraries write files that nobody else
    may read. Raises OSError.
    """
    withheld = read_umask()
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod((0o777 if path.is_dir() else 0o666) & ~withheld)


def relative_to_cwd(path: Path) -> Path:
    """The path as seen from the current folder where it is below it, else unchanged."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace `path` by a file with this text: readers see the old or the new; `durable`: also after a power cut.

    Raises OSError, and then the old file stays and no temporary one.
    """
    import secrets

    # Threads of one process, and processes with the same pid on two hosts, may write the same file at once.
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
        fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` survive a power cut. Raises OSError."""
    _fsync(folder, os.O_RDONLY | os.O_DIRECTORY)


def fsync_file(file: Path) -> None:
    """Make the bytes of `file` survive a power cut. Raises OSError."""
    _fsync(file, os.O_RDONLY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
