# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges are on under a profiler alone. Needs deepspeed; seconds."""

from __future__ import annotations

import pytest
from deepspeed.utils import nvtx

from harness.patches.nvtx_ranges import disable_nvtx_without_profiler


@pytest.mark.parametrize("profiled", [True, False])
def test_ranges_are_marked_where_somebody_listens(monkeypatch: pytest.MonkeyPatch, profiled: bool) -> None:
    monkeypatch.setattr(nvtx, "enable_nvtx", not profiled)
    if profiled:
        monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    disable_nvtx_without_profiler()
    assert nvtx.enable_nvtx is profiled
