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
from pathlib import Path
from typing import Any

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
    """Load each op in turn, which compiles it where it is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stamp", type=Path)
    parser.add_argument("--key")
    parser.add_argument("--request", help="base64 of JSON: path, environ and ops, for a host that is to find its stamp")
    parser.add_argument("ops", nargs="*", metavar="OP", help=" ".join(sorted(BUILDERS)))
    args = parser.parse_args()
    if args.request and not asked(args):
        return 0
    if not args.stamp or not args.key or not set(args.ops) <= set(BUILDERS):
        parser.error("needs --stamp, --key and ops that are known, or --request")
    # What libraries print must not mix with the events: their stdout becomes stderr.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    from deepspeed.accelerator import get_accelerator

    records: dict[str, Any] = {}
    for op in args.ops:
        began = time.time()
        events.write(json.dumps({"event": "start", "op": op}) + "\n")
        try:
            module = get_accelerator().create_op_builder(BUILDERS[op]).load()
        except Exception as error:  # whatever it is, the user gets one finding and the log has the rest
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            events.write(json.dumps({"event": "failed", "op": op, "error": str(error)}) + "\n")
            return 1
        stat = Path(module.__file__).stat()
        records[op] = {"file": module.__file__, "mtime_ns": stat.st_mtime_ns, "size": stat.st_size}
        events.write(json.dumps({"event": "done", "op": op, "compiled": stat.st_mtime >= began}) + "\n")
    remember(args.stamp, args.key, records)
    return 0


def asked(args: argparse.Namespace) -> bool:
    """Take environment, ops, stamp and key from the request; False when all ops are ready."""
    request = json.loads(base64.urlsafe_b64decode(args.request))
    own = os.environ.get("PATH", os.defpath)
    os.environ.update({name: str(value).replace("$PATH", own) for name, value in request["environ"].items()})
    os.environ.setdefault("MAX_JOBS", str(max(1, min(8, len(os.sched_getaffinity(0))))))
    sys.path[:0] = request["path"]
    from harness.launching import build

    root = build.extensions_root()
    args.stamp, args.key, args.ops = build.stamp_file(root), build.stamp_key(os.environ), request["ops"]
    if build.is_ready(args.ops, root, os.environ):
        return False
    root.mkdir(parents=True, exist_ok=True)
    for lock in build.stale_locks(root, args.ops):
        newest = max((p.stat().st_mtime for p in lock.parent.iterdir()), default=0.0)
        if time.time() - newest > build.QUIET_SECONDS:  # its holder may be on another host that has this folder too
            lock.unlink(missing_ok=True)
    return True


def remember(stamp: Path, key: str, records: dict[str, Any]) -> None:
    """Add to the stamp what is ready for this environment; what is noted of others stays."""
    try:
        known = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    known[key] = {**known.get(key, {}), **records}
    scratch = stamp.with_name(f".{stamp.name}.{os.getpid()}")
    scratch.write_text(json.dumps(known, indent=1), encoding="utf-8")
    scratch.replace(stamp)


if __name__ == "__main__":
    sys.exit(main())
