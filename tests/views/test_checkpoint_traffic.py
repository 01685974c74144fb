# SPDX-License-Identifier: Apache-2.0
"""The lines about a simulated save and resume."""

from __future__ import annotations

from typing import Any

from harness.views.plan_simulation import describe_checkpoint

GIB = 1 << 30
CHECKPOINT: dict[str, Any] = {
    "written": {"weights": 0, "optimizer states": 3 * GIB},
    "way": "in line",
    "read_from_nvme": 0,
    "read": {"weights": GIB, "optimizer states": 3 * GIB},
    "disk_of_resume": {},
}
COPIES = {"save": {"device to host": {"count": 2, "bytes": 2 * GIB}}}


def test_a_save_and_a_resume() -> None:
    lines = describe_checkpoint({"checkpoint": CHECKPOINT, "copies": COPIES})
    assert lines == [
        "save: 3.00 GiB of optimizer states written in line with training; 2.00 GiB copied to the host",
        "resume: 1.00 GiB of weights, 3.00 GiB of optimizer states read",
    ]


def test_states_on_nvme_and_a_background_save() -> None:
    on_nvme = {**CHECKPOINT, "read_from_nvme": 3 * GIB, "disk_of_resume": {"read": GIB, "written": 3 * GIB}}
    save, resume = describe_checkpoint({"checkpoint": on_nvme, "copies": {}})
    assert save.endswith("3.00 GiB read from the NVMe")
    assert resume.endswith("; NVMe: 1.00 GiB read, 3.00 GiB written")
    background = describe_checkpoint({"checkpoint": {**CHECKPOINT, "way": "background"}, "copies": {}})
    assert "written from a copy in the background" in background[0]


def test_out_of_memory_before_a_checkpoint() -> None:
    assert describe_checkpoint({"copies": {}}) == []
    without_read = {name: value for name, value in CHECKPOINT.items() if name not in ("read", "disk_of_resume")}
    assert len(describe_checkpoint({"checkpoint": without_read, "copies": {}})) == 1
