# SPDX-License-Identifier: Apache-2.0
"""The NVMe fields of a line: bytes of the swap files, and the traffic of a step."""

from __future__ import annotations

import time
from typing import Any

from harness.runtime.telemetry.log_interval import LogInterval
from harness.runtime.telemetry.nvme_io import disk_usage, find_nvme_dirs

_DISK_USAGE_INTERVAL_SECONDS = 30.0


class NvmeUsage:
    """The swap folders of a run. Their size is read every 30 seconds."""

    def __init__(self, ds_config: dict[str, Any]) -> None:
        self._folders = find_nvme_dirs(ds_config)
        self._num_bytes, self._read_at = 0, -_DISK_USAGE_INTERVAL_SECONDS

    def fields(self, interval: LogInterval) -> dict[str, Any]:
        """Empty where the run does not swap to NVMe."""
        if not self._folders:
            return {}
        now = time.monotonic()
        if now - self._read_at >= _DISK_USAGE_INTERVAL_SECONDS:
            self._num_bytes, self._read_at = disk_usage(self._folders), now
        return {
            "seconds_io": round(interval.io_seconds / interval.steps, 6),
            "nvme_bytes": self._num_bytes,
            "nvme_read_bytes": round(interval.bytes_read / interval.steps),
            "nvme_write_bytes": round(interval.bytes_written / interval.steps),
        }
