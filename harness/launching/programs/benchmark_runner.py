# SPDX-License-Identifier: Apache-2.0
"""Runs the hardware benchmark and turns its figures into rows and a `cluster` section."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.hostinfo import machine
from harness.hostinfo.gpu_links import find_gpu_links
from harness.interpreter import python_command
from harness.launching.process.child_process import own_programs_path, read_child_lines
from harness.launching.programs.doctor_rows import DoctorCheck

_PROGRAM = "harness.runtime.hardware_benchmark"
_MEASURE_SECONDS = 20.0
_START_SECONDS = 60.0
"""Python, torch and DeepSpeed from a disk that may be slow."""
_NAMES = ("host_memory", "cpu_adam", "disk", "gpu")
_SHARE_SECONDS = {"host_memory": 4.0, "cpu_adam": 4.0, "disk": 6.0, "gpu": 6.0}
"""As in the program, which cannot be imported without torch."""
_AREA = "measured"
_ADAM_BYTES_PER_PARAMETER = 28


AIO_LACKS_NVCC = "DeepSpeed compiles its aio with nvcc on machines with NVIDIA GPUs, and nvcc was not found"


def benchmark_host(folder: Path | None) -> dict[str, Any]:
    """Figures in bytes, FLOP and parameters a second; `cores` and `host_memory_bytes` of this host; `links` where it
    has GPUs; `seconds` of each measurement; `failed` and `slow` with a reason each. `folder`: on the disk to measure.
    """
    host: dict[str, Any] = {"cores": machine.usable_cores(), "host_memory_bytes": machine.host_memory().total}
    if machine.accelerators_for(os.environ):
        links = find_gpu_links()
        host["links"] = {
            "between": list(links.kinds),
            "nvlink": links.nvlink,
            "is_without_nvlink": links.is_without_nvlink,
            "text": links.as_text(),
        }
    missing = [name for name in ("torch", "deepspeed") if machine.package_version(name) is None]
    if missing:
        return {**host, "failed": {"all": f"{' and '.join(missing)} not installed"}}
    command = python_command("-m", _PROGRAM, *([str(folder.resolve())] if folder else []))
    changes = {"PATH": own_programs_path()}
    lines = read_child_lines(command, lambda _: None, changes, timeout=_START_SECONDS + _MEASURE_SECONDS)
    figures = join_lines(lines, with_disk=folder is not None)
    if "disk" in figures["failed"] and machine.lacks_nvcc(os.environ):
        figures["failed"]["disk"] = AIO_LACKS_NVCC
    return {**host, **figures}


def join_lines(lines: Sequence[Mapping[str, Any]], *, with_disk: bool) -> dict[str, Any]:
    """The lines of the program as figures. It was ended where one is missing: the first was too slow."""
    if not lines:
        return {"failed": {"all": "the benchmark did not start"}}
    by_name = {line.get("name"): line for line in lines}
    figures: dict[str, Any] = {"failed": {}, "slow": {}, "seconds": {}}
    wanted = [name for name in _NAMES if name != "disk" or with_disk]
    unfinished = ""
    for name in wanted:
        line = by_name.get(name)
        if line is None:
            reason = f"not reached within {_MEASURE_SECONDS:.0f} s: {unfinished} did not end"
            figures["failed"][name] = reason if unfinished else f"did not end within {_MEASURE_SECONDS:.0f} s in all"
            unfinished = unfinished or _title_of(name)
            continue
        seconds = float(line.get("seconds", 0.0))
        figures["seconds"][name] = seconds
        figures.update(line.get("figures") or {})
        if "failed" in line:
            figures["failed"][name] = line["failed"]
        elif seconds > _SHARE_SECONDS[name]:
            figures["slow"][name] = f"it took {seconds:.1f} s and was repeated less often: the rate may be too low"
    return figures


def to_doctor_checks(figures: Mapping[str, Any]) -> tuple[DoctorCheck, ...]:
    """One row per figure, measured or not."""
    rows = [DoctorCheck(_AREA, name, text) for key, name, text in _measurement_texts(figures) if key in figures]
    if "links" in figures:
        rows.append(DoctorCheck(_AREA, "GPU links", f"{figures['links']['text']} (nvidia-smi, nominal)"))
    for name, reason in (figures.get("slow") or {}).items():
        rows.append(DoctorCheck(_AREA, _title_of(name), "slow", "note", str(reason)))
    for name, reason in (figures.get("failed") or {}).items():
        rows.append(DoctorCheck(_AREA, _title_of(name), "could not be measured", "note", str(reason)[:160]))
    return tuple(rows)


def _title_of(name: str) -> str:
    return {"cpu_adam": "CPU Adam", "gpu": "GPU"}.get(name, name.replace("_", " "))


def _measurement_texts(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    def rate(key: str, unit: float = 1e9) -> float:
        return float(figures.get(key) or 0.0) / unit

    adam = rate("cpu_adam", 1e6)
    way = figures.get("disk_way", "by DeepSpeed's aio")
    return [
        ("cores", "CPU cores", f"{figures.get('cores')} for this process"),
        ("host_memory", "host memory", f"{rate('host_memory'):.1f} GB/s, a stream of additions"),
        ("cpu_adam", "CPU Adam", f"{adam:,.0f} M parameters/s ({adam * _ADAM_BYTES_PER_PARAMETER / 1e3:.1f} GB/s)"),
        ("disk_read", "disk read", f"{rate('disk_read'):.2f} GB/s {way}"),
        ("disk_write", "disk write", f"{rate('disk_write'):.2f} GB/s {way}"),
        ("gpu_up", "host to GPU", f"{rate('gpu_up'):.1f} GB/s"),
        ("gpu_down", "GPU to host", f"{rate('gpu_down'):.1f} GB/s"),
        ("gpu_flops_16", "bf16 product", f"{rate('gpu_flops_16', 1e12):.0f} TFLOP/s"),
    ]


def to_cluster_section(figures: Mapping[str, Any]) -> dict[str, str]:
    """The `cluster` section of a run spec: the rates that the plan otherwise assumes, and the memory of this host. GPUs
    without NVLink talk over PCIe, at no more than the rate of their copies. Empty where nothing was measured.
    """
    keys = {
        "host_memory": "host_memory_bandwidth",
        "disk_read": "nvme_read_bandwidth",
        "disk_write": "nvme_write_bandwidth",
    }
    section = {name: f"{figures[key] / 1e9:.2f}GB/s" for key, name in keys.items() if figures.get(key)}
    if figures.get("gpu_up") and figures.get("gpu_down"):
        section["pcie_bandwidth"] = f"{min(figures['gpu_up'], figures['gpu_down']) / 1e9:.2f}GB/s"
        if (figures.get("links") or {}).get("is_without_nvlink"):
            section["link_bandwidth"] = section["pcie_bandwidth"]
    if section and figures.get("host_memory_bytes"):
        section = {"host_memory": f"{figures['host_memory_bytes'] >> 20}MiB", **section}
    return section
