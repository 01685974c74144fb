"""Plays a rehearsal: makes its files, trains, kills, goes on and exports, each by the command that a user would type.

What it is to be made of is decided in `harness.rehearsal`; everything that it starts has ended when it returns.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.findings import Finding, Fix
from harness.interpreter import python
from harness.launching.commands import end, start
from harness.launching.processes import of_run
from harness.records.record import Record, read_record
from harness.rehearsal.carry import Seen

_PATIENCE = 1800.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """One command of the rehearsal, or the making of its files."""

    name: str
    seconds: float
    code: int
    what: str


@dataclass(slots=True)
class Played:
    """What came of it. `findings` say why it ended early."""

    folder: Path
    scripts: Path
    tell: Tell
    options: Sequence[str] = ()
    """Of `harness launch`, beyond those that every rehearsal needs."""
    stages: list[Stage] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    killed: Record | None = None
    resumed: Record | None = None
    export_peak: int | None = None

    @property
    def seen(self) -> Seen:
        """The lines to compare with the plan."""
        records = [record for record in (self.killed, self.resumed) if record is not None]
        lines = {kind: [line for record in records for line in record.of(kind)] for kind in ("memory", "save")}
        seconds = [value for record in records for value in record.values("seconds")]
        return Seen(lines["memory"], seconds, lines["save"], self.export_peak)


def play(
    folder: Path, scripts: Path, orders: Mapping[str, Any], save_at: int, tell: Tell, options: Sequence[str] = ()
) -> Played:
    """All phases in order; the first that fails ends it. `spec.yaml` must be in `folder`; `options` are more of
    `harness launch`. Raises nothing.
    """
    played = Played(folder, scripts, tell, options)
    parts: tuple[Callable[[], None], ...] = (
        partial(_files, played, orders),
        partial(_killed, played, save_at),
        partial(_resumed, played, save_at),
        partial(_export, played),
    )
    for part in parts:
        part()
        if played.findings:
            break
    return played


def _files(played: Played, orders: Mapping[str, Any]) -> None:
    file = played.folder / "orders.json"
    file.write_text(json.dumps(orders, indent=2), encoding="utf-8")
    command = [sys.executable, str(played.scripts / "rehearsal_files.py"), "--orders", str(file)]
    code, seconds, _ = _run(played, command, "files")
    _note(played, Stage("files", seconds, code, "a sharded model folder of random weights, and records"))
    if code:
        _failed(played, "files", code, "the model folder could not be made")


def _killed(played: Played, save_at: int) -> None:
    """Train, and kill a rank once a checkpoint is complete and the next step has begun."""
    began, rank, code = time.monotonic(), None, 1
    with (played.folder / "train.log").open("ab") as log:
        child = start(_launch(played), played.folder, log)
        try:
            rank = _rank_after(played, child, save_at)
            if rank is not None:
                os.kill(rank, signal.SIGKILL)
            code = child.wait(_PATIENCE)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            rank = None
        finally:
            end(child)
    played.killed = _newest(played)
    seconds = time.monotonic() - began
    if rank is None:
        code = code or 1
        _note(played, Stage("train", seconds, code, "load, train, save"))
        _failed(played, "train", code, "it ended before it could be killed")
        return
    _note(played, Stage("train", seconds, 0, f"load, train, save; a rank killed after step {save_at}"))
    if code == 0:
        _failed(played, "train", 1, "a rank was killed, and the launch says that all is well")


def _resumed(played: Played, save_at: int) -> None:
    code, seconds, _ = _run(played, [*_launch(played), "--resume", "auto"], "resume")
    record = played.resumed = _newest(played)
    start = int(record.start.get("start_step", 0)) if record else 0
    _note(played, Stage("resume", seconds, code, f"went on from step {start}, trained to the end"))
    if code:
        _failed(played, "resume", code, "it did not go on to the end")
    elif start < save_at:
        _failed(played, "resume", 1, f"it went on from step {start}, the checkpoint was of step {save_at}")


def _export(played: Played) -> None:
    run_dir = played.resumed.folder if played.resumed else played.folder / "runs" / "latest"
    # the rehearsal's own checkpoint: the spec has said whether the model's code runs
    words = ("-m", "harness", "export", str(run_dir), str(played.folder / "export"), "--allow-local-code")
    command = python(*words)
    code, seconds, peak = _run(played, command, "export")
    played.export_peak = peak or None
    size = sum(path.stat().st_size for path in (played.folder / "export").glob("*.safetensors"))
    _note(played, Stage("export", seconds, code, f"{size:,} bytes of weights for transformers"))
    if code or not size:
        _failed(played, "export", code or 1, "nothing was exported")


def _launch(played: Played) -> list[str]:
    words = python("-m", "harness", "launch", "spec.yaml", "--progress", "plain", "--format", "json")
    return [*words, *played.options]


def _run(played: Played, command: Sequence[str], name: str) -> tuple[int, float, int]:
    """Exit code, seconds, and the largest resident set of the process and of what it waited for."""
    began = time.monotonic()
    with (played.folder / f"{name}.log").open("ab") as log:
        child = start(command, played.folder, log)
        try:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            end(child)
    code = child.returncode
    return (128 - code if code < 0 else code), time.monotonic() - began, usage.ru_maxrss * 1024


def _rank_after(played: Played, child: subprocess.Popen[bytes], step: int) -> int | None:
    """The pid of a rank once the run has a complete checkpoint of this step; None when the launch ends before."""
    until = time.monotonic() + _PATIENCE
    while child.poll() is None and time.monotonic() < until:
        found = runs_with(played.folder, f"checkpoints/step-{step:08d}/manifest.json")
        if found:
            return _rank_of(found[-1])
        time.sleep(0.02)
    return None


def runs_with(folder: Path, name: str) -> list[Path]:
    """Run directories that have this file, the one whose file is newest last; without `latest`, which is a link to one
    of them: ranks are known by the directory's own name.
    """
    runs = [run for run in (folder / "runs").glob("*") if not run.is_symlink() and (run / name).is_file()]
    return sorted(runs, key=lambda run: (run / name).stat().st_mtime)


def _rank_of(run_dir: Path) -> int | None:
    """The last rank: one that is not the first, where there are several."""
    ranks = {}
    for process in of_run(run_dir, session=-1):
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        local = [part for part in command if part.startswith(b"--local_rank=")]  # the launcher gives it to ranks alone
        if local and any(part.endswith(b"train.py") for part in command):
            ranks[int(local[0].partition(b"=")[2])] = process.pid
    return ranks[max(ranks)] if ranks else None


def _newest(played: Played) -> Record | None:
    found = runs_with(played.folder, "launch.json")
    return read_record(found[-1]) if found else None


def _note(played: Played, stage: Stage) -> None:
    played.stages.append(stage)
    played.tell(f"{stage.name}: {stage.what} ({stage.seconds:.0f} s, code {stage.code})")


def _failed(played: Played, name: str, code: int, why: str) -> None:
    log = played.folder / f"{name}.log"
    try:
        tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-8:]
    except OSError:
        tail = []
    fix = Fix(f"read `{log}`; `harness explain --log {log}` names the cause")
    message = f"the rehearsal ended in the phase `{name}` with code {code}: {why}"
    played.findings.append(Finding("MM012", "error", message, notes=tuple(line[:200] for line in tail), fix=fix))
