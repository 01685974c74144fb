# SPDX-License-Identifier: Apache-2.0
"""Sizes and rates that a spec writes as text (`cluster.host_memory: 2TB`), within what machines have."""

from __future__ import annotations

from collections.abc import Callable

from harness.findings import Finding, Fix
from harness.units import format_bytes, pluralize

_BOUNDS: dict[str, tuple[int, int | None]] = {
    "cluster.gpu_memory": (10**8, 10**14),
    "cluster.gpu_memory_bandwidth": (10**9, 10**15),
    "cluster.host_memory": (10**8, 10**16),
    "cluster.nvme": (10**8, 10**18),
}
"""Bytes, or bytes a second: below is a size whose unit was forgotten, above is a slip."""
_SIZE_EXAMPLES = {"cluster.nvme": "write it as `8x3.5TB`", "cluster.gpu_memory_bandwidth": "write it as `3.35TB/s`"}


def parse_size(
    key: str, text: str | int | None, parse: Callable[[str | int], int]
) -> tuple[int | None, tuple[Finding, ...]]:
    """The bytes of `text` by `parse`, or the finding (MM004) if it is not a size, or larger than any machine's."""
    if text is None:
        return None, ()
    smallest, largest = _BOUNDS.get(key, (0, None))
    try:
        size = parse(text)
        if size < smallest:
            raise ValueError(f"`{text}` is {pluralize(size, 'byte')}, which no such machine has")
        if largest is not None and size > largest:
            raise ValueError(f"`{text}` is more than {format_bytes(largest)}, which no such machine has")
        return size, ()
    except ValueError as error:
        fix = Fix(_SIZE_EXAMPLES.get(key, "write a size such as `2TB` or `1024GiB`"))
        return None, (Finding("MM004", "warning", str(error), key=key, fix=fix),)
