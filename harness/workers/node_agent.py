# SPDX-License-Identifier: Apache-2.0
"""Reports to the supervisor which ranks of this host are alive, and ends them when they must end.

`harness launch` starts one on each host over ssh. It ends all processes of the run there when it reads `end`, when the
connection breaks, or when the supervisor is silent for `silence` seconds: DeepSpeed leaves the ranks of a host that was
cut off running for ever. It judges nothing.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.launching.process.processes import Process

_POLL_SECONDS = 0.5


class Listener(threading.Thread):
    """Reads the supervisor's lines: each is a heartbeat; `end` and the end of the pipe request the end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.last_heartbeat, self.end_requested = time.monotonic(), False

    def run(self) -> None:
        """Read until `end` or the end of the pipe."""
        for line in sys.stdin:
            self.last_heartbeat = time.monotonic()
            if line.strip() == "end":
                break
        self.end_requested = True


def main() -> int:
    """Report until the end, then end all ranks; exit code 1 when one could not be ended."""
    request = json.loads(base64.urlsafe_b64decode(sys.argv[1]))
    sys.path[:0] = request["path"]
    from harness.hostinfo.machine import host_identity
    from harness.launching.process import shm
    from harness.launching.process.oom_kills import read_oom_kills
    from harness.launching.process.processes import find_run_processes, kill_all, read_process

    run_dir = Path(request["run_dir"])
    # On the machine that launches, the launcher and its ssh are the supervisor's to end.
    spared_session = request["session"] if request["supervisor"] == host_identity() else -1

    def find_ranks() -> list[Process]:
        return [p for p in find_run_processes(run_dir, -1) if p.session_id != spared_session]

    listener = Listener()
    listener.start()
    known_pids: set[int] = set()
    sent_statuses: dict[str, str] = {}
    signals: dict[int, int] = {}
    while not listener.end_requested and time.monotonic() - listener.last_heartbeat < request["silence"]:
        # The signal that killed a process can be read until its parent waits for it, within a second or so.
        killed = {
            pid: process.exit_signal for pid in known_pids if (process := read_process(pid)) and process.exit_signal
        }
        signals |= {pid: number for pid, number in killed.items() if number}
        alive = [process.pid for process in find_ranks()]
        known_pids |= set(alive)
        message: dict[str, object] = {"alive": alive, "signals": signals, "oom_kills": read_oom_kills()}
        if not send(message | read_new_statuses(run_dir, sent_statuses) if request.get("own_disk") else message):
            break
        time.sleep(_POLL_SECONDS)
    left = kill_all(find_ranks, 0.0)
    if request.get("own_disk"):
        send(read_new_statuses(run_dir, sent_statuses))
    shm.remove_unused_buffers({int(request["port"])})
    send({"left": [process.pid for process in left]})
    return int(bool(left))


def read_new_statuses(run_dir: Path, sent: dict[str, str]) -> dict[str, object]:
    """The statuses of this host's ranks that have changed since they were sent, for a supervisor that does not see this
    disk.
    """
    statuses = {}
    for file in sorted((run_dir / "status").glob("rank-*.json")):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeError):
            continue
        if sent.get(file.name) != text:
            sent[file.name] = statuses[file.name] = text
    return {"statuses": statuses} if statuses else {}


def send(message: dict[str, object]) -> bool:
    """Write one line to the supervisor; False when the pipe is closed."""
    try:
        os.write(1, (json.dumps(message) + "\n").encode())
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
