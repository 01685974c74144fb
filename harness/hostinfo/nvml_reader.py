# SPDX-License-Identifier: Apache-2.0
"""Reads the health of NVIDIA GPUs by NVML (`nvidia-ml-py`): clocks, heat, power, links, memory errors. Judges nothing.

It imports nothing of the harness: as a program it prints the answer as one line of JSON on stdout, and
`harness/workers/host_probe.py` runs its text on hosts where the harness may be missing. It changes no setting of a GPU.
A value that a driver or a GPU does not have is null.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an old Python on a host could not evaluate them
    from collections.abc import Callable
    from typing import Any

MARK = "HARNESS-NVML "
"""Begins the one line that is ours."""
NVLINK_FIELDS = (38, 45, 52, 59)
"""Of nvml.h, over all links: CRC errors of flits and of data, replays, recoveries."""
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_SLOWDOWN_THRESHOLD = 1  # nvmlTemperatureThresholds_t
_UNCORRECTED, _VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_LOST = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED


def read_all_gpus() -> dict[str, Any]:
    """`gpus`, each as `read_gpu` says it, the driver's version, and in `words` why nothing could be read."""
    answer: dict[str, Any] = {"driver": None, "gpus": [], "words": ""}
    try:
        import pynvml
    except Exception as error:  # a broken installation says in many ways that it is one
        answer["words"] = f"nvidia-ml-py cannot be imported: {error}"
        return answer
    try:
        pynvml.nvmlInit()
        answer["driver"] = _text(pynvml.nvmlSystemGetDriverVersion())
        answer["gpus"] = [read_gpu_at(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception as error:
        answer["words"] = f"NVML: {error}"
    return answer


def read_gpu_at(pynvml: Any, index: int) -> dict[str, Any]:
    """The GPU with this index, which counts by PCI bus id; of one that is lost `words` alone."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return {"index": index, "words": str(error)}
    gpu = {"index": index, **read_identity(pynvml, handle), **read_gpu(pynvml, handle)}
    up, down = count_nvlinks(pynvml, handle)
    return {**gpu, "links_up": up, "links_down": down}


def read_identity(pynvml: Any, handle: Any) -> dict[str, Any]:
    """Name, UUID and PCI bus id, such as `0000:1b:00.0`."""
    bus = _read(lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId))
    return {
        "name": _read(lambda: _text(pynvml.nvmlDeviceGetName(handle))),
        "uuid": _read(lambda: _text(pynvml.nvmlDeviceGetUUID(handle))),
        "bus_id": bus and bus.lower()[-12:],
    }


def read_gpu(pynvml: Any, handle: Any) -> dict[str, Any]:
    """Readings that change while a GPU works: MHz, degrees Celsius, watts, percent, counts."""
    words = ""
    try:
        pynvml.nvmlDeviceGetTemperature(handle, 0)
    except pynvml.NVMLError as error:
        words = str(error) if error.value in _LOST else ""
    if words:
        return {"words": words}
    remapped = _read(lambda: pynvml.nvmlDeviceGetRemappedRows(handle)) or (None,) * 4
    return {
        "words": "",
        "reasons": _read_reasons(pynvml, handle),
        "sm_clock": _read(lambda: pynvml.nvmlDeviceGetClockInfo(handle, _SM)),
        "sm_clock_max": _read(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, _SM)),
        "memory_clock": _read(lambda: pynvml.nvmlDeviceGetClockInfo(handle, _MEMORY)),
        "memory_clock_max": _read(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, _MEMORY)),
        "temperature": _read(lambda: pynvml.nvmlDeviceGetTemperature(handle, 0)),
        "slowdown_temperature": _read(lambda: pynvml.nvmlDeviceGetTemperatureThreshold(handle, _SLOWDOWN_THRESHOLD)),
        "power": _read(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "power_limit": _read(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        "power_limit_default": _read(lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000),
        "utilization": _read(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "pcie_width": _read(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "pcie_width_max": _read(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "pcie_generation": _read(lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "pcie_generation_max": _read(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "link_errors": _read(lambda: _sum_nvlink_errors(pynvml, handle)),
        "ecc_uncorrected": _read(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE)),
        "pages_pending": _read(lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
        "rows_remapped": remapped[1],
        "rows_pending": remapped[2],
        "remap_failed": remapped[3],
    }


def count_nvlinks(pynvml: Any, handle: Any) -> tuple[int, int]:
    """NVLinks that are up, and down; links that the GPU lacks count as neither."""
    states = [
        _read(lambda link=link: pynvml.nvmlDeviceGetNvLinkState(handle, link))  # type: ignore[misc]
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
    ]
    return states.count(1), states.count(0)


def _read_reasons(pynvml: Any, handle: Any) -> int | None:
    """The bits of why clocks are low; drivers before 535 know them by the older name alone."""
    reasons: int | None = _read(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    return _read(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) if reasons is None else reasons


def _sum_nvlink_errors(pynvml: Any, handle: Any) -> int | None:
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(NVLINK_FIELDS))
    known = [int(value.value.ullVal) for value in values if value.nvmlReturn == 0]
    return sum(known) if known else None


def _read(function: Callable[[], Any]) -> Any:
    """A value, or None if this driver, this GPU or this pynvml does not support it."""
    try:
        return function()
    except Exception:
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    sys.stdout.write(MARK + json.dumps(read_all_gpus()) + "\n")
