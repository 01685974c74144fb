# SPDX-License-Identifier: Apache-2.0
"""Bytes of a simulated save and resume of one rank, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.units import format_bytes


def describe_checkpoint(result: Mapping[str, Any]) -> list[str]:
    """The bytes that a rank writes and reads; nothing where no checkpoint was simulated."""
    checkpoint = result.get("checkpoint")
    if not checkpoint:
        return []
    copies = result["copies"].get("save", {}).get("device to host", {}).get("bytes", 0)
    way = "from a copy in the background" if checkpoint["way"] == "background" else "in line with training"
    words = f"save: {_by_kind(checkpoint['written'])} written {way}"
    if copies:
        words += f"; {format_bytes(copies)} copied to the host"
    if checkpoint["read_from_nvme"]:
        words += f"; {format_bytes(checkpoint['read_from_nvme'])} read from the NVMe"
    lines = [words]
    if "read" in checkpoint:
        words = f"resume: {_by_kind(checkpoint['read'])} read"
        disk = checkpoint["disk_of_resume"]
        if disk:
            words += f"; NVMe: {format_bytes(disk.get('read', 0))} read, {format_bytes(disk.get('written', 0))} written"
        lines.append(words)
    return lines


def _by_kind(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{format_bytes(size)} of {kind}" for kind, size in sizes.items() if size) or "nothing"
