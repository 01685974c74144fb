"""What one rank prints, on its way to the launcher: all of it also into a file of the rank's own, whole lines, and each
of another rank than the first with its rank before it, as torch marks its own: `[rank3]: `.

A process of its own, which `train.py` starts: what a rank said before it crashed is kept. It ends when the rank has and
whatever the rank has started. Standard library only, without `site`, so that it starts at once.
"""

import contextlib
import os
import signal
import sys

_ATOMIC = 4096
"""Bytes that a pipe takes in one piece (PIPE_BUF), so that no line of another rank comes in between."""
_LONGEST = 1 << 16
"""Of a line that does not end, such as a progress bar's, so much is waited for."""


def relay(source: int, target: int, log: int | None, mark: bytes) -> None:
    """Until the end of `source`. Who reads `target` or has the disk may be gone: then the other is still written."""
    rest = b""
    while chunk := os.read(source, 1 << 16):
        log = _written(log, chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], b""
        _pass_on(target, lines, mark)
    if rest:
        _pass_on(target, [rest], mark)


def _pass_on(target: int, lines: list[bytes], mark: bytes) -> None:
    piece = b""
    for line in lines:
        whole = (b"" if line.startswith(b"[rank") else mark) + line + b"\n"
        if len(piece) + len(whole) > _ATOMIC:
            _written(target, piece)
            piece = b""
        piece += whole
    _written(target, piece)


def _written(to: int | None, data: bytes) -> int | None:
    """The descriptor, as long as it can be written."""
    with contextlib.suppress(OSError):
        while to is not None and data:
            data = data[os.write(to, data) :]
        return to
    return None


if __name__ == "__main__":
    file, rank = sys.argv[1], int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    opened = None
    with contextlib.suppress(OSError):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    relay(0, 1, opened, b"[rank%d]: " % rank if rank else b"")
