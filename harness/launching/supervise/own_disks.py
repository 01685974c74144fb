# SPDX-License-Identifier: Apache-2.0
"""Runs on hosts that share no disk (`launch.shared_disk: false`): what travels over the control connection.

Before an attempt every other host gets the files that its ranks read. While they run, the node agent of a host sends
the statuses of its ranks, which are written here: all that reads the run directory finds them as on a shared disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from harness.checkpoints.store_source import SOURCE_FILE, StoreSource, find_stored_checkpoint
from harness.errors import ExitCode, UserError
from harness.file_io import replace_file, write_atomically
from harness.findings import Finding, Fix
from harness.launching.hosts.ssh import FAN_OUT, SSH_FAILURE, encode_request, remote_python_path, ssh_command
from harness.launching.process.parallel_children import ChildOutput, run_children
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.setup.store_checks import with_environment
from harness.printed_text import escape_unprintable
from harness.run_records.rank_statuses import status_name
from harness.run_records.run_files import json_of

_FILES = ("spec.resolved.json", "ds_config.json", "launch.json", SOURCE_FILE)
"""What ranks read of a run directory."""
_SECONDS = 60.0
_MAX_ERROR = 2**14
_MAX_STATUS = 2**16


def copy_run_dir(plan: LaunchPlan, scripts: Path) -> None:
    """Give every other host the files that ranks read. Raises UserError (EN058) with a finding for each that fails."""
    if plan.shared_disk or not plan.starts_remote_ranks:
        return
    files = {name: (plan.run_dir / name).read_text() for name in _FILES if (plan.run_dir / name).is_file()}
    content = json.dumps(files).encode()
    request = {"run_dir": str(plan.run_dir), "path": remote_python_path(os.environ)}
    command = [sys.executable, str(scripts / "run_dir_writer.py"), encode_request(request)]

    hosts = [host.name for host in plan.hosts if not host.is_local]
    outputs = run_children(
        (ssh_command(host, command) for host in hosts),
        content,
        seconds=_SECONDS,
        fan_out=FAN_OUT,
        limit=_MAX_ERROR,
        environ=os.environ,
    )
    failed = [_not_created(host, plan.run_dir, out) for host, out in zip(hosts, outputs, strict=True) if out.code != 0]
    if failed:
        raise UserError(failed, ExitCode.PREFLIGHT)


def _not_created(host: str, run_dir: Path, output: ChildOutput) -> Finding:
    lines = output.err.decode("utf-8", "replace").strip().splitlines()
    if output.error is not None:
        reason = f"ssh cannot be started: {output.error.strerror}"
    elif output.code is None:
        reason = f"no answer within {_SECONDS:.0f} s"
    else:
        reason = escape_unprintable(lines[-1])[:200] if lines else "no reason was given"
    fix = Fix(f"give {host} a disk that can be written at this path (`launch.output_dir`)")
    if output.code == SSH_FAILURE:
        fix = Fix(f"see that `ssh {host}` works without a password, or take it out of the hostfile")
    message = f"the run directory `{run_dir}` cannot be created on {host}: {reason}"
    return Finding("EN058", "error", message, key="launch.output_dir", fix=fix)


def find_stored_resume(run_dir: Path, variables: Mapping[str, str], log: Callable[[str], None]) -> Path | None:
    """The newest checkpoint of this run in the store of `checkpoint.upload_to`, as the ranks will find it on their
    disks; before its first upload the one there that it resumed from. None without a store, or if the store has no such
    checkpoint. `variables` is `launch.env`.
    """
    spec = json_of(run_dir / "spec.resolved.json").get("spec") or {}
    url = (spec.get("checkpoint") or {}).get("upload_to")
    if not isinstance(url, str):
        return None
    try:
        with with_environment(variables):
            source, _, skipped = find_stored_checkpoint(url)
        if not source.runs or source.runs[-1].rpartition("-")[0] != run_dir.name:
            first = StoreSource.read(run_dir)
            return run_dir / "checkpoints" / first.folder_name if first is not None and first.url == url else None
        write_atomically(run_dir / SOURCE_FILE, source.to_text())
    except (OSError, UserError) as error:
        log(f"no checkpoint of `{url}` can be resumed from: {error}")
        return None
    for line in skipped:
        log(line)
    return run_dir / "checkpoints" / source.folder_name


def write_statuses(run_dir: Path, ranks: Collection[int], statuses: Mapping[str, object]) -> None:
    """Write what the agent of a host says of its `ranks`, where the disk takes it. What is no status of one of these is
    left out: a host speaks for its own ranks alone.
    """
    for rank in ranks:
        text = statuses.get(name := status_name(rank))
        if isinstance(text, str) and len(text) <= _MAX_STATUS:
            with contextlib.suppress(OSError):
                replace_file(run_dir / "status" / name, text, durable=False)
