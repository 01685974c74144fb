# SPDX-License-Identifier: Apache-2.0
"""Copies the output of one rank to the launcher, in whole lines, and to a file of the rank.

Lines of ranks other than the first get the rank in front, as torch marks its own: `[rank3]: `.

`train_worker.py` starts it as a process of its own, so that the output of a rank that crashes is kept. It ends when the
rank and all that the rank started have ended. It imports no package, and runs without `site`, so that it starts at
once.
"""

import contextlib
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

from harness.secret_text import hide_passwords_in_bytes
from harness.side_file import SideFile, describe_output_gap

_PIPE_BYTES = 4096
"""Bytes that one write puts into a pipe in one piece (PIPE_BUF), so that no line of another rank comes in between."""
_MAX_LINE_BYTES = 1 << 16
"""A longer line, such as a progress bar's, is passed on before it ends."""


def copy_output(source: int, target: int, log: SideFile, mark: bytes) -> None:
    """Copy all of `source`, without passwords. When `target` or `log` cannot be written, the other still is."""
    rest = b""
    while chunk := os.read(source, 1 << 16):
        ended, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            ended, newline, rest = ended + newline + rest, b"", b""
        if ended or newline:
            ended = hide_passwords_in_bytes(ended)
            log.append(ended + newline)
            _write_lines(target, ended.split(b"\n"), mark)
    if rest:
        rest = hide_passwords_in_bytes(rest)
        log.append(rest)
        _write_lines(target, [rest], mark)
    log.close()


def _write_lines(target: int, lines: list[bytes], mark: bytes) -> None:
    chunk = b""
    for line in lines:
        whole = (b"" if line.startswith(b"[rank") else mark) + line + b"\n"
        if len(chunk) + len(whole) > _PIPE_BYTES:
            _write(target, chunk)
            chunk = b""
        chunk += whole
    _write(target, chunk)


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it, unless it cannot be written any more."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    file, rank = sys.argv[1], int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    copy_output(0, 1, SideFile(file, describe_output_gap), b"[rank%d]: " % rank if rank else b"")
