# SPDX-License-Identifier: Apache-2.0
"""Reads the health of this rank's own GPU by NVML, in a thread: a driver in trouble may take seconds for an answer.

No step waits for a reading, and nothing waits for the device. After a failure nothing more is read in this run.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.hostinfo import nvml_reader
from harness.hostinfo.gpu_health import GpuHealth, GpuProblem, count_most_links, find_gpu_problems, parse_gpu

MIN_SECONDS_BETWEEN_READS = 5.0
_MAX_XID_EVENTS = 8
_XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
_PACKED_FIELDS = tuple(
    (
        "reasons sm_clock sm_clock_max temperature slowdown_temperature power power_limit power_limit_default "
        "utilization pcie_width pcie_width_max pcie_generation pcie_generation_max links_up ecc_uncorrected "
        "pages_pending rows_pending remap_failed"
    ).split()
)


class OwnGpu(NamedTuple):
    """The GPU of a rank, as torch names it."""

    uuid: str
    bus_id: str = ""

    @property
    def label(self) -> str:
        """The name for messages."""
        return f"GPU {self.bus_id or self.uuid}"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading. `xid`: the last Xid error of this GPU since the run has started; 0 without any."""

    health: GpuHealth
    most_links: int = 0
    xid: int = 0

    @property
    def problems(self) -> list[GpuProblem]:
        """The problems in it."""
        return find_gpu_problems(self.health, self.most_links)


_NUM_HEAD = 4
NUM_PACKED = _NUM_HEAD + len(_PACKED_FIELDS)
_CLOCK_COLUMN = _NUM_HEAD + _PACKED_FIELDS.index("sm_clock")


def pack_reading(reading: GpuReading | None) -> list[float]:
    """A reading as `NUM_PACKED` floats, for a gather. The first one is 0 where there is nothing to report."""
    if reading is None:
        return [0.0, *[math.nan] * (NUM_PACKED - 1)]
    values = [getattr(reading.health, name) for name in _PACKED_FIELDS]
    is_unusual = bool(reading.xid) or any(problem.kind != "power_cap" for problem in reading.problems)
    head = [float(is_unusual), float(bool(reading.health.words)), float(reading.most_links), float(reading.xid)]
    return [*head, *(math.nan if value is None else float(value) for value in values)]


def unpack_reading(values: Sequence[float]) -> GpuReading | None:
    """The reading of such floats; None where the rank had none."""
    if math.isnan(values[1]):
        return None
    raw: dict[str, Any] = {"words": "GPU is lost" if values[1] else ""}
    raw |= {name: v for name, v in zip(_PACKED_FIELDS, values[_NUM_HEAD:], strict=True) if not math.isnan(v)}
    return GpuReading(parse_gpu(raw), int(values[2]), int(values[3]))


def read_packed_clock(values: Sequence[float]) -> float | None:
    """The SM clock in such floats, in MHz; None where it is not known."""
    clock = values[_CLOCK_COLUMN]
    return None if math.isnan(clock) else clock


_USE_FIELDS = {"gpu_utilization": "utilization", "gpu_power": "power"}


def packed_use(rows: Sequence[Sequence[float]]) -> dict[str, list[float | None]]:
    """The use in percent and the power in watts of the GPU of each rank, by packed readings; without what NVML gives
    of none.
    """
    columns = {name: _NUM_HEAD + _PACKED_FIELDS.index(field) for name, field in _USE_FIELDS.items()}
    values = {
        name: [None if math.isnan(row[at]) else round(row[at], 1) for row in rows] for name, at in columns.items()
    }
    return {name: column for name, column in values.items() if any(value is not None for value in column)}


def find_own_gpu() -> OwnGpu | None:
    """The NVIDIA GPU that this process computes on; None on a CPU."""
    import torch
    from deepspeed.accelerator import get_accelerator

    if get_accelerator().device_name() != "cuda":
        return None
    try:
        properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        uuid = f"GPU-{properties.uuid}"
    except Exception:  # a simulated device
        return None
    domain, bus, device = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    return OwnGpu(uuid, "" if domain is None else f"{domain:04x}:{bus:02x}:{device:02x}.0")


@dataclass(slots=True)
class GpuWatch:
    """Reads one GPU from time to time. `words` says why it no longer does."""

    gpu: OwnGpu
    reading: GpuReading | None = None
    words: str = ""
    _thread: threading.Thread | None = None
    _started_at: float = -math.inf
    _nvml: Any = None
    _handle: Any = None
    _events: Any = None
    _most_links: int = 0
    _xid: int = 0

    def poll(self) -> None:
        """Start a reading where one is due. It ends before a later poll; one that does not end is the last one."""
        now = time.monotonic()
        if self.words or now - self._started_at < MIN_SECONDS_BETWEEN_READS:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._started_at = now
        self._thread = threading.Thread(target=self._read, name="gpu-health", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for a reading that is under way."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _read(self) -> None:
        try:
            if self._nvml is None:
                self._open()
            raw = nvml_reader.read_gpu(self._nvml, self._handle)
            raw["links_up"], _ = nvml_reader.count_nvlinks(self._nvml, self._handle)
            self._read_xid()
            self.reading = GpuReading(parse_gpu(raw), self._most_links, self._xid)
        except Exception as error:  # whatever NVML does, training continues
            self.words = f"{type(error).__name__}: {error}"

    def _open(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(self.gpu.uuid)
        gpus = [parse_gpu(nvml_reader.read_gpu_at(pynvml, index)) for index in range(pynvml.nvmlDeviceGetCount())]
        own_name = nvml_reader.read_identity(pynvml, self._handle)["name"] or ""
        self._most_links = count_most_links(gpus).get(own_name, 0)
        try:
            self._events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(self._handle, _XID_EVENT, self._events)
        except Exception:  # not in every container and not by every driver
            self._events = None
        self._nvml = pynvml

    def _read_xid(self) -> None:
        if self._events is None:
            return
        for _ in range(_MAX_XID_EVENTS):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # a time-out: no event
                return
            self._xid = int(event.eventData)
