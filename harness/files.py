"""Writing a file so that it is either the old one or the new one, never half of it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write `text` as UTF-8 beside `path`, flush it to the disk, then rename. Raises OSError; the old file stays
    then.

    A link is followed. What is there and is no regular file (a device, a folder) is never replaced: that is an OSError.
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
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
