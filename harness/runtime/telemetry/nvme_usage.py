# SPDX-License-Identifier: Apache-2.0
"""The NVMe fields of a line: bytes of the swap files, and the traffic of a step."""

from __future__ import annotations

import time
from typing import Any

from harness.runtime.nvme_io import disk_usage, find_nvme_dirs
from harness.runtime.telemetry.log_interval import LogInterval

_DISK_USAGE_INTERVAL_SECONDS = 30.0


class NvmeUsage:
    """The swap folders of a run. Their size is read every 30 seconds.

    `counts_traffic`: the patch `nvme-counters` is applied. Without it there are no fields of the traffic.
    """

    def __init__(self, ds_config: dict[str, Any], *, counts_traffic: bool) -> None:
        self._folders, self._counts_traffic = find_nvme_dirs(ds_config), counts_traffic
        self._num_bytes, self._read_at = 0, -_DISK_USAGE_INTERVAL_SECONDS

    def fields(self, interval: LogInterval) -> dict[str, Any]:
        """Empty where the run does not swap to NVMe."""
        if not self._folders:
            return {}
        now = time.monotonic()
        if now - self._read_at >= _DISK_USAGE_INTERVAL_SECONDS:
            self._num_bytes, self._read_at = disk_usage(self._folders), now
        if not self._counts_traffic:
            return {"nvme_bytes": self._num_bytes}
        return {
            "seconds_io": round(interval.io_seconds / interval.steps, 6),
            "nvme_bytes": self._num_bytes,
            "nvme_read_bytes": round(interval.bytes_read / interval.steps),
            "nvme_write_bytes": round(interval.bytes_written / interval.steps),
        }
