# SPDX-License-Identifier: Apache-2.0
"""Compiles DeepSpeed ops for this Python and records the files in a stamp; one JSON event a line on stdout.

`harness launch` runs it before the ranks, here and over ssh on every other host. It decides nothing: its command line
names the ops.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

BUILDERS = {
    "deepspeed_shm_comm": "ShareMemCommBuilder",
    "cpu_adam": "CPUAdamBuilder",
    "cpu_adagrad": "CPUAdagradBuilder",
    "cpu_lion": "CPULionBuilder",
    "fused_adam": "FusedAdamBuilder",
    "fused_lamb": "FusedLambBuilder",
    "fused_lion": "FusedLionBuilder",
    "quantizer": "QuantizerBuilder",
    "pin_memory": "PinMemoryBuilder",
    "async_io": "AsyncIOBuilder",
}

OWN_OP = "cpu_adam_one_pass"
"""Of the patch `one-pass-adam`; ranks train without it where it cannot be compiled."""


def main() -> int:
    """Compile and load every op that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--request", help="base64 of JSON: path, environ and ops, for a host that is reached by ssh")
    parser.add_argument("--ask", type=Path, metavar="FILE", help="a run whose model's own code is asked first")
    parser.add_argument("ops", nargs="*", metavar="OP", help=" ".join(sorted([*BUILDERS, OWN_OP])))
    arguments = parser.parse_args()
    if arguments.request:
        apply_request(arguments)
    if not arguments.ops or not set(arguments.ops) <= {*BUILDERS, OWN_OP}:
        parser.error("needs ops that are known, or --request")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from harness.interpreter import remove_repeated_root

    remove_repeated_root()
    from harness.hostinfo.torch_extensions import (
        describe_unwritable,
        find_planted_ops,
        set_torch_extensions_dir,
        torch_extensions_dir,
    )
    from harness.launching.ops import build_cache

    root = torch_extensions_dir()
    os.umask(os.umask(0o022) | 0o022)  # nobody else may write what ranks load
    with contextlib.suppress(OSError):  # torch reports it
        root.mkdir(parents=True, exist_ok=True)
    planted = find_planted_ops(root, arguments.ops)
    if planted is not None:
        write_event(sys.stdout, "planted", file=str(planted.path), reason=planted.reason, account=planted.account)
        return 1
    if build_cache.ops_are_built(arguments.ops, root, os.environ):
        return 0
    if reason := describe_unwritable(root):
        write_event(sys.stdout, "unwritable", reason=reason)
        return 1
    # Libraries print to stdout too; their output must not mix with the events.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    if arguments.ask and refuses_model(arguments.ask, events):
        return 1
    for lock, removed in build_cache.remove_stale_locks(root, arguments.ops):
        write_event(events, "lock", file=str(lock), removed=removed)
    for op in build_cache.remove_truncated_libraries(root, arguments.ops):
        write_event(events, "unloadable", op=op, error="the library is not whole")
    set_torch_extensions_dir(os.environ)
    records = build_ops(arguments.ops, root, events)
    if {*records, OWN_OP} >= set(arguments.ops):
        update_stamp(build_cache.build_stamp_file(root), build_cache.build_stamp_key(os.environ), records)
        return 0
    return 1


def refuses_model(file: Path, events: TextIO) -> bool:
    """Ask the model of a run in a process of its own: what its code imports and leaves behind is not the compiler's.
    What it raises itself is left to the ranks, which say so.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    code = 2
    try:
        from harness.errors import UserError
        from harness.run.resolved_run import ResolvedRun
        from harness.runtime.objectives.objective_list import ask_before_ranks

        try:
            ask_before_ranks(ResolvedRun.from_json(json.loads(file.read_text(encoding="utf-8"))))
        except UserError as error:
            write_event(events, "refused", findings=[finding.to_json() for finding in error.findings])
            code = 1
    finally:
        os._exit(code)


def apply_request(arguments: argparse.Namespace) -> None:
    """Take over the environment, the search path and the ops of the request."""
    request = json.loads(base64.urlsafe_b64decode(arguments.request))
    own_path = os.environ.get("PATH", os.defpath)
    os.environ.update({name: str(value).replace("$PATH", own_path) for name, value in request["environ"].items()})
    os.environ.setdefault("MAX_JOBS", str(max(1, min(8, len(os.sched_getaffinity(0))))))
    sys.path[:0] = request["path"]
    arguments.ops = request["ops"]


def build_ops(ops: Sequence[str], root: Path, events: TextIO) -> dict[str, Any]:
    """Load each op in turn, which compiles it where it is not up to date, until one fails that ranks need; returns
    their files.
    """
    records: dict[str, Any] = {}
    for op in ops:
        start = time.time()
        write_event(events, "start", op=op, compiled=any(_find_libraries(op, root)))
        try:
            file = Path(load_op(op, root, events).__file__)
        except Exception as error:  # whatever it is, the user gets one finding and the log has the rest
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            if op == OWN_OP:
                write_event(events, "skipped", op=op)
                continue
            write_event(events, "failed", op=op, error=str(error))
            break
        stat = file.stat()
        records[op] = {"file": str(file), "mtime_ns": stat.st_mtime_ns, "size": stat.st_size}
        write_event(events, "done", op=op, compiled=stat.st_mtime >= start)
    return records


def _find_libraries(op: str, root: Path) -> list[Path]:
    """The libraries of an op that was compiled before; it loads in seconds, unless its sources have changed."""
    from harness.launching.ops import build_cache

    return [library for folder in build_cache.find_op_folders(root, [op]) for library in folder.glob("*.so")]


def load_op(op: str, root: Path, events: TextIO) -> Any:
    """The op's module. A library that cannot be loaded is removed and compiled again: ninja takes any new file for a
    compiled one, whatever is in it.
    """
    from torch.utils import cpp_extension

    from harness.launching.ops import build_cache

    try:
        return get_builder(op).load()
    except ImportError as error:
        if any((folder / "lock").exists() for folder in build_cache.find_op_folders(root, [op])):
            raise  # another process compiles it
        write_event(events, "unloadable", op=op, error=str(error)[:200])
    build_cache.remove_op(root, op)
    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(op, None)  # else torch would not even look
    return get_builder(op).load()


def get_builder(op: str) -> Any:
    """DeepSpeed's builder of an op for its accelerator. Raises RuntimeError where the accelerator has no such op."""
    from deepspeed.accelerator import get_accelerator

    from harness.patches.one_pass_adam import make_builder

    if op == OWN_OP:
        return make_builder()
    accelerator = get_accelerator()
    builder = accelerator.create_op_builder(BUILDERS[op])
    if builder is None:
        reason = f"DeepSpeed takes the accelerator `{accelerator.device_name()}` here, which has no op `{op}`"
        raise RuntimeError(f"{reason}: the ranks were meant for NVIDIA GPUs or the CPU")
    return builder


def write_event(events: TextIO, event: str, **details: Any) -> None:
    """Write one event for the parent process."""
    events.write(json.dumps({"event": event, **details}) + "\n")


def update_stamp(stamp: Path, key: str, records: dict[str, Any]) -> None:
    """Add the records of this environment to the stamp; those of others stay."""
    try:
        stamps = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stamps = {}
    stamps[key] = {**stamps.get(key, {}), **records}
    stamp.parent.mkdir(parents=True, exist_ok=True)
    scratch = stamp.with_name(f".{stamp.name}.{os.getpid()}")
    scratch.write_text(json.dumps(stamps, indent=1), encoding="utf-8")
    scratch.replace(stamp)


if __name__ == "__main__":
    sys.exit(main())
