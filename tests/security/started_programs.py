# SPDX-License-Identifier: Apache-2.0
"""Runs a command of the harness and says which programs it started and which connections it opened.

Python's audit events see both, in the process of the command itself: what a started program does is not seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_WATCHED = """
import json, os, sys, atexit, runpy
arguments, out = sys.argv[2:], sys.argv[1]
seen = []
def watch(event, values):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
        seen.append(["starts", os.path.basename(os.fsdecode(values[0] or values[1][0]))])
    elif event == "os.system":
        seen.append(["starts", "sh"])
    elif event in ("socket.connect", "socket.getaddrinfo"):
        seen.append(["connects", str(values[1] if event == "socket.connect" else values[0])])
    elif event == "pickle.find_class":
        seen.append(["unpickles", str(values)])
    elif event == "exec" and values[0].co_name == "<module>":
        seen.append(["imports", values[0].co_filename])
sys.addaudithook(watch)
atexit.register(lambda: open(out, "w").write(json.dumps(seen)))
sys.argv = ["harness", *arguments]
runpy.run_module("harness", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class WatchedCommand:
    """What a command did. `starts` and `connects` are without doubles, in order."""

    code: int
    output: str
    starts: list[str]
    connects: list[str]
    unpickles: list[str]
    imports: list[str]
    """Files of the modules that ran."""

    def imported_below(self, folder: Path) -> list[str]:
        """Modules of a folder that ran."""
        return [name for name in self.imports if Path(name).is_relative_to(folder)]


def watch_command(arguments: list[str], folder: Path, scratch: Path) -> WatchedCommand:
    """Run `harness ARGUMENTS` in `folder`; `scratch` takes the record."""
    record = scratch / "started.json"
    command = [sys.executable, "-P", "-c", _WATCHED, str(record), *arguments]
    process = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    rows = json.loads(record.read_text(encoding="utf-8"))
    kinds = {
        kind: list(dict.fromkeys(name for k, name in rows if k == kind))
        for kind in ("starts", "connects", "unpickles", "imports")
    }
    return WatchedCommand(process.returncode, process.stdout + process.stderr, **kinds)
