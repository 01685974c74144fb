# SPDX-License-Identifier: Apache-2.0
"""Lists of cores as DeepSpeed's launcher reads them: `0-27,56-83`. Arithmetic on text."""

from __future__ import annotations

from itertools import pairwise

MAX_CORES = 1 << 16
"""No host has as many cores: a higher number is a typing error, and its range is not expanded."""


def parse_core_list(text: str) -> list[int]:
    """The cores of a list. Raises ValueError, with a sentence, for a list that the launcher refuses
    (`deepspeed/utils/numa.py` `parse_range_list`): anything but numbers and ranges, in ascending order, each core once.
    """
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"`{part[:40]}` is neither a core's number nor a range such as `0-27`")
        if max(len(first), len(last)) > 5 or int(last or first) >= MAX_CORES:
            raise ValueError(f"`{part[:40]}` names a core that no host has")
        if dash and int(last) < int(first):
            raise ValueError(f"`{part[:40]}` ends before it begins")
        cores += range(int(first), int(last or first) + 1)
    if any(next_core <= core for core, next_core in pairwise(cores)):
        raise ValueError("cores are named twice, or not in ascending order")
    return cores
