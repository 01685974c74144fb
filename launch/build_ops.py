"""Compile DeepSpeed ops for this Python and note the files in a stamp; one JSON event a line on stdout.

Run by `harness launch` before the ranks, here and over ssh on every other host; it decides nothing: the ops are named
on its command line.
"""

from __future__ import annotations

import argparse
import base64
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
    "pin_memory": "PinMemoryBuilder",
    "async_io": "AsyncIOBuilder",
}


def main() -> int:
    """Make every op ready that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--request", help="base64 of JSON: path, environ and ops, for a host that is reached by ssh")
    parser.add_argument("ops", nargs="*", metavar="OP", help=" ".join(sorted(BUILDERS)))
    args = parser.parse_args()
    if args.request:
        take(args)
    if not args.ops or not set(args.ops) <= set(BUILDERS):
        parser.error("needs ops that are known, or --request")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from harness.hostinfo.torch_extensions import set_torch_extensions_dir, torch_extensions_dir
    from harness.launching.ops import local_build

    root = torch_extensions_dir()
    if local_build.ops_are_built(args.ops, root, os.environ):
        return 0
    # What libraries print must not mix with the events: their stdout becomes stderr.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    for lock, removed in local_build.remove_stale_locks(root, args.ops):
        say(events, "lock", file=str(lock), removed=removed)
    for op in local_build.remove_truncated_libraries(root, args.ops):
        say(events, "unloadable", op=op, error="the library is not whole")
    set_torch_extensions_dir(os.environ)
    records = compiled(args.ops, root, events)
    if set(records) == set(args.ops):
        remember(local_build.build_stamp_file(root), local_build.build_stamp_key(os.environ), records)
        return 0
    return 1


def take(args: argparse.Namespace) -> None:
    """Environment, search path and ops from the request."""
    request = json.loads(base64.urlsafe_b64decode(args.request))
    own = os.environ.get("PATH", os.defpath)
    os.environ.update({name: str(value).replace("$PATH", own) for name, value in request["environ"].items()})
    os.environ.setdefault("MAX_JOBS", str(max(1, min(8, len(os.sched_getaffinity(0))))))
    sys.path[:0] = request["path"]
    args.ops = request["ops"]


def compiled(ops: Sequence[str], root: Path, events: TextIO) -> dict[str, Any]:
    """Load each op in turn, which compiles it where it is not up to date; the file of each, up to one that fails."""
    records: dict[str, Any] = {}
    for op in ops:
        began = time.time()
        say(events, "start", op=op)
        try:
            file = Path(load(op, root, events).__file__)
        except Exception as error:  # whatever it is, the user gets one finding and the log has the rest
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            say(events, "failed", op=op, error=str(error))
            break
        stat = file.stat()
        records[op] = {"file": str(file), "mtime_ns": stat.st_mtime_ns, "size": stat.st_size}
        say(events, "done", op=op, compiled=stat.st_mtime >= began)
    return records


def load(op: str, root: Path, events: TextIO) -> Any:
    """The op's module. ninja takes for compiled what is there and new, whatever is in it: what cannot be loaded is
    removed and compiled again.
    """
    from deepspeed.accelerator import get_accelerator
    from torch.utils import cpp_extension

    from harness.launching.ops import local_build

    try:
        return get_accelerator().create_op_builder(BUILDERS[op]).load()
    except ImportError as error:
        if any((folder / "lock").exists() for folder in local_build.find_op_folders(root, [op])):
            raise  # another process compiles it
        say(events, "unloadable", op=op, error=str(error)[:200])
    local_build.remove_op(root, op)
    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(op, None)  # else torch would not even look
    return get_accelerator().create_op_builder(BUILDERS[op]).load()


def say(events: TextIO, event: str, **more: Any) -> None:
    """One line for whoever started this."""
    events.write(json.dumps({"event": event, **more}) + "\n")


def remember(stamp: Path, key: str, records: dict[str, Any]) -> None:
    """Add to the stamp what is ready for this environment; what is noted of others stays."""
    try:
        known = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    known[key] = {**known.get(key, {}), **records}
    stamp.parent.mkdir(parents=True, exist_ok=True)
    scratch = stamp.with_name(f".{stamp.name}.{os.getpid()}")
    scratch.write_text(json.dumps(known, indent=1), encoding="utf-8")
    scratch.replace(stamp)


if __name__ == "__main__":
    sys.exit(main())
