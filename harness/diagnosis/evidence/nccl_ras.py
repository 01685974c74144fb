# SPDX-License-Identifier: Apache-2.0
"""NCCL's RAS service of a running job: the ranks that are behind the others, or gone, in its report as text.

Every process with NCCL 2.24 or newer listens on `localhost:28028` (`NCCL_RAS_ADDR`) and answers for the whole job.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator

DEFAULT_ADDRESS = "localhost:28028"
_TIMEOUT_SECONDS = 10.0
_MAX_BYTES = 1 << 20
_MAX_NAMED = 8
_COUNT = re.compile(r"(?P<count>\d+) ranks have (?:launched up to operation (?P<number>\d+)|not launched any)")
_BEHIND = re.compile(
    r"Rank (?P<rank>\d+)(?: has (?:launched up to operation (?P<number>\d+)|not launched any operations))? -- "
    r"GPU \S+ managed by process (?P<pid>\d+) on node (?P<node>\S+)"
)
_COLLECTIVE = re.compile(r"different (?P<name>\w+) operation counts")
_GONE = re.compile(r"Process (?P<pid>\d+) on node (?P<node>\S+) managing GPU (?P<gpu>\S+)")


def query_ras(address: str = "") -> str:
    """The report of the job whose process listens at `HOST:PORT`. Raises OSError where none does."""
    host, _, port = (address or os.environ.get("NCCL_RAS_ADDR") or DEFAULT_ADDRESS).rpartition(":")
    if not port.isdecimal():
        raise OSError(f"NCCL_RAS_ADDR is no HOST:PORT: {address}")
    with socket.create_connection((host or "localhost", int(port)), _TIMEOUT_SECONDS) as connection:
        stream = connection.makefile("rwb")
        for request, reply in ((b"CLIENT PROTOCOL 2\n", b"SERVER PROTOCOL "), (b"TIMEOUT 5\n", b"OK")):
            stream.write(request)
            stream.flush()
            if not stream.readline(256).startswith(reply):
                raise OSError(f"{host}:{port} does not speak NCCL's RAS protocol")
        stream.write(b"VERBOSE STATUS\n")
        stream.flush()
        deadline, report = time.monotonic() + _TIMEOUT_SECONDS, b""
        while len(report) < _MAX_BYTES and time.monotonic() < deadline and (part := stream.read1(1 << 16)):
            report += part
        return report.decode("utf-8", "replace")


def describe_ras_report(report: str) -> Iterator[str]:
    """A sentence for each communicator with ranks behind the others, and one for processes that do not answer."""
    gone = [f"process {m['pid']} on {m['node']} (GPU {m['gpu']})" for m in _GONE.finditer(report)]
    if gone:
        yield f"NCCL's RAS gets no answer from {_shorten(gone)}"
    for part in re.split(r"(?m)^#", report)[1:]:
        name = part.split(" ", 1)[0]
        counts = {int(m["number"] or 0): int(m["count"]) for m in _COUNT.finditer(part)}
        rows = list(_BEHIND.finditer(part))
        furthest = max([*counts, *(int(m["number"] or 0) for m in rows)], default=0)
        single = [m for m in rows if " has " in m[0] and int(m["number"] or 0) < furthest]
        group = [m for m in rows if " has " not in m[0]] if min(counts, default=furthest) < furthest else []
        behind = [f"rank {m['rank']} (pid {m['pid']} on {m['node']})" for m in (*single, *group)]
        if not behind:
            continue
        collective = _COLLECTIVE.search(part)
        what = "operation" if collective is None or collective["name"] == "collective" else collective["name"]
        last = max([int(m["number"] or 0) for m in single] + [number for number in counts if number < furthest])
        yield f"NCCL's RAS: {_shorten(behind)} launched up to {what} {last} of communicator {name}, others {furthest}"


def _shorten(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
