# SPDX-License-Identifier: Apache-2.0
"""The output of a child that may print without end: the last bytes of it, in bounded memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import IO

_CHUNK_BYTES = 1 << 16


def communicate_bounded(
    child: subprocess.Popen[bytes], source: bytes, seconds: float, limit: int
) -> tuple[bytes, bytes]:
    """Give `source` to the child's stdin and wait for its end: the last `limit` bytes of its stdout and of its stderr.

    The child leads its session and has three pipes. Raises TimeoutExpired after `seconds`; the session is dead then.
    """
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    pipes = {"stdout": child.stdout, "stderr": child.stderr}
    threads = [threading.Thread(target=_keep_end, args=(pipes[name], kept[name], limit), daemon=True) for name in kept]
    threads.append(threading.Thread(target=_write, args=(child.stdin, source), daemon=True))
    for thread in threads:
        thread.start()
    try:
        child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    finally:
        for thread in threads:
            thread.join(timeout=1.0)  # a grandchild that left the session may hold a pipe open
    return bytes(kept["stdout"][-limit:]), bytes(kept["stderr"][-limit:])


def _keep_end(pipe: IO[bytes] | None, kept: bytearray, limit: int) -> None:
    if pipe is None:
        return
    with pipe:
        while chunk := os.read(pipe.fileno(), _CHUNK_BYTES):
            kept += chunk
            if len(kept) > 2 * limit:
                del kept[:-limit]


def _write(pipe: IO[bytes] | None, source: bytes) -> None:
    if pipe is None:
        return
    with contextlib.suppress(OSError), pipe:
        pipe.write(source)
