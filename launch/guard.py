"""Stands beside the ranks of one host: tells the supervisor which of them live, and ends them when they must end.

Started over ssh by `harness launch`, one a host. It ends all processes of the run there when it is told `end`, when the
connection breaks, or when nothing came from the supervisor for `silence` seconds: DeepSpeed leaves the ranks of a host
that was cut off, and they go on for ever. It judges nothing.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from pathlib import Path

_EVERY_SECONDS = 0.5


class Listener(threading.Thread):
    """Reads what the supervisor says: a line is a sign of life, `end` and the end of the pipe ask for the end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.heard, self.asked = time.monotonic(), False

    def run(self) -> None:
        """Until the pipe ends."""
        for line in sys.stdin:
            self.heard = time.monotonic()
            if line.strip() == "end":
                break
        self.asked = True


def main() -> int:
    """Beat until it is time, then leave nobody; exit code 1 when somebody could not be ended."""
    request = json.loads(base64.urlsafe_b64decode(sys.argv[1]))
    sys.path[:0] = request["path"]
    from harness.hostinfo.machine import host_identity
    from harness.launching.process import shm
    from harness.launching.process.processes import find_run_processes, kill_all, read_process

    run_dir = Path(request["run_dir"])
    # On the machine that launches, the launcher and its ssh are the supervisor's to end.
    spared = request["session"] if request["supervisor"] == host_identity() else -1
    find = lambda: [p for p in find_run_processes(run_dir, -1) if p.session_id != spared]  # noqa: E731
    listener = Listener()
    listener.start()
    known: set[int] = set()
    signals: dict[int, int] = {}
    while not listener.asked and time.monotonic() - listener.heard < request["silence"]:
        # A process that was killed tells by which signal until its parent asks for its end, within a second or so.
        gone = {pid: found.exit_signal for pid in known if (found := read_process(pid)) and found.exit_signal}
        signals |= {pid: number for pid, number in gone.items() if number}
        alive = [process.pid for process in find()]
        known |= set(alive)
        if not say({"alive": alive, "signals": signals}):
            break
        time.sleep(_EVERY_SECONDS)
    left = kill_all(find, 0.0)
    shm.remove_unused_buffers({int(request["port"])})
    say({"left": [process.pid for process in left]})
    return int(bool(left))


def say(answer: dict[str, object]) -> bool:
    """One line to the supervisor; False when nobody is there to read it."""
    try:
        os.write(1, (json.dumps(answer) + "\n").encode())
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
