# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the tiers, and the rule that in CI a tier which should have run and skipped is a failure.

Tiers: everything outside `with_deepspeed/` and the modules that `NEEDS_TRAINING` names needs the base dependencies alone;
those need the training extra and compile DeepSpeed's CPU ops on first use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.hostinfo.installed_deepspeed import installed_version

HERE = Path(__file__).parent
NEEDS_TRAINING = (
    "with_deepspeed",
    "cli/test_data_command.py",
    "launching/test_core_binding.py",
    "launching/test_signals.py",
    "launching/test_launch_to_end.py",
    "launching/test_recovery.py",
    "conformance/test_against_deepspeed.py",
    "test_recipes.py",
    "kill",
    "hosts",
)
TIER = os.environ.get("HARNESS_TIER", "all")
"""`light` leaves out what trains, `training` leaves out all else, `hosts` is what trains across hosts, and nothing more.
With `gpu` the tests see this machine's GPUs.
"""
if TIER != "gpu":
    # What is compared with the CPU's results, and what starts more ranks than a machine may have GPUs, runs on the CPU
    # wherever the suite runs. A test that is about devices makes some up (`made_up_gpu.py`) and says so to what it starts.
    os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
TRAINING = installed_version() is not None and TIER != "light"
ACROSS_HOSTS = (
    "hosts/test_launch_across_hosts.py",
    "hosts/test_backends_across_hosts.py",
    "hosts/test_slurm_across_hosts.py",
)
"""Launches over ssh, minutes each: `make test-hosts`."""
ALLOWED_SKIPS = (
    "this processor has no AVX512-FP16",
    "needs a GPU",
    "needs root",
    "needs chromium",
    "needs slurm",
)
"""Reasons that a machine may have; everything else must run in CI."""
if installed_version() is None:
    ALLOWED_SKIPS += ("needs DeepSpeed's files",)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without the training extra its tiers are left out as a whole; HARNESS_TIER leaves some out on purpose."""
    if not collection_path.name.startswith("test_"):
        return None
    if any(collection_path == HERE / name for name in ACROSS_HOSTS):
        return None if TIER == "hosts" and TRAINING else True
    if _needs_training(collection_path):
        return None if TRAINING and TIER != "hosts" else True
    return True if TIER in ("training", "hosts") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs seconds comes before what needs minutes, and before the ops that CI still compiles meanwhile."""
    items.sort(key=lambda item: _needs_training(item.path))


def _needs_training(path: Path) -> bool:
    return any((HERE / name) in (path, *path.parents) for name in NEEDS_TRAINING)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """In CI a skip without an allowed reason fails."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} skipped in CI, where it should have run: {reason}"
    return report


@pytest.fixture
def write(tmp_path: Path):
    """`write("a.yaml", text)` makes a file in the test's own folder and returns its path as text."""

    def make(name: str, text: str | bytes) -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)

    return make
