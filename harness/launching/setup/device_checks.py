# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine's accelerators for its own ranks: which DeepSpeed takes, what torch can use, what compiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.facts.deepspeed_version import installed_source_folder
from harness.facts.required_ops import CUDA_OPS, WITHOUT_NVCC
from harness.findings import Finding, Fix, Severity
from harness.hostinfo import machine
from harness.hostinfo.deepspeed_accelerator import find_accelerator_problem, torch_may_take_others
from harness.hostinfo.gpu_health import group_gpu_problems, select_gpus
from harness.hostinfo.nvml_probe import probe_gpus
from harness.hostinfo.torch_devices import TorchDevices, find_torch_problem, format_device_names
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.hostinfo.torch_probe import probe_torch
from harness.launching.hosts.local_host import LocalHost, visible_devices
from harness.launching.setup.architecture_list import (
    VARIABLE,
    find_unreadable_architectures,
    strip_architecture_suffixes,
)

_MIG_PREFIX = "MIG-"


def check_device_ids(local_host: LocalHost, num_ranks: int | None) -> Iterator[Finding]:
    """The devices that CUDA_VISIBLE_DEVICES names, and their number."""
    if not local_host.accelerated or num_ranks is None:
        return
    visible = visible_devices(local_host.environ)
    if any(not device.isdigit() for device in visible):
        is_slice = any(device.startswith(_MIG_PREFIX) for device in visible)
        of_slices = ("slices of a GPU (MIG) have no numbers: unset, one rank takes the first slice",)
        yield Finding(
            "EN004",
            "error",
            f"`CUDA_VISIBLE_DEVICES={','.join(visible)}` names devices by something other than a number",
            notes=(
                "the `deepspeed` launcher replaces it by numbers, which would pick other devices",
                *(of_slices if is_slice else ()),
            ),
            fix=Fix(
                "unset it and start one rank, or turn MIG off (`nvidia-smi -mig 0`, as root)"
                if is_slice
                else "give device numbers, as `nvidia-smi -L` counts them"
            ),
        )
    elif num_ranks > local_host.num_accelerators:
        yield Finding(
            "EN005",
            "error",
            f"{num_ranks} ranks are requested and this machine has {local_host.num_accelerators} accelerators",
            key="launch.num_gpus",
            notes=("DeepSpeed starts all the ranks; those without a device fail at their first use of CUDA",),
            fix=Fix(
                f"set `launch.num_gpus: {local_host.num_accelerators}`",
                {"launch.num_gpus": local_host.num_accelerators},
                effect="the batch is divided differently",
            ),
        )


def check_torch_devices(env: Mapping[str, str], local_host: LocalHost, num_ranks: int | None) -> list[Finding]:
    """The accelerator that DeepSpeed takes, and whether torch can use the devices: DeepSpeed trains on the CPU
    otherwise. `env` is `launch.env`. torch is asked, which takes seconds, only where there may be devices.
    """
    if num_ranks is None or machine.package_version("torch") is None:
        return []
    environ = {**local_host.environ, **env}
    torch: TorchDevices | None = None
    if local_host.accelerated or torch_may_take_others(environ):
        torch = probe_torch(local_host.scripts, variables=env)
    problem = find_accelerator_problem(environ, torch, has_nvidia=bool(local_host.device_names))
    if problem is not None:
        return [Finding("EN022", "error", problem.reason, fix=Fix(problem.fix))]
    return _check_torch_answer(torch, local_host, num_ranks) if local_host.accelerated and torch else []


def _check_torch_answer(torch: TorchDevices, local_host: LocalHost, num_ranks: int) -> list[Finding]:
    problem = find_torch_problem(torch, num_ranks)
    if problem is not None:
        message = f"{problem.reason}, and this machine has {format_device_names(local_host.device_names)}"
        on_purpose = "to train on the CPU on purpose: DS_ACCELERATOR=cpu, in the shell or in `launch.env`"
        return [Finding("EN015", "error", message, notes=(problem.consequence, on_purpose), fix=Fix(problem.fix))]
    if torch.slices:
        message = f"the rank gets {torch.slices[0]}, a slice of a GPU"
        note = "the plan and `cluster.gpu` count the memory and the speed of a whole one"
        fix = Fix("plan with `cluster.gpu_memory` of the slice, or turn MIG off (`nvidia-smi -mig 0`, as root)")
        return [Finding("EN021", "warning", message, notes=(note,), fix=fix)]
    return []


def check_gpu_health(local_host: LocalHost, num_ranks: int | None) -> Iterator[Finding]:
    """Findings of the gates EN080 to EN085 about this machine's GPUs, for its own ranks. A child process reads NVML,
    which takes up to some seconds.
    """
    if not local_host.accelerated or num_ranks is None:
        return
    visible = visible_devices(local_host.environ)
    if any(not device.isdigit() for device in visible):  # another finding
        return
    devices = [int(device) for device in visible] or list(range(local_host.num_accelerators))
    for group in group_gpu_problems({"": select_gpus(probe_gpus(), devices[:num_ranks])}):
        severity: Severity = "error" if group.is_fault else "warning"
        yield Finding(group.gate, severity, group.message, notes=group.notes, fix=Fix(group.fix))


def check_cuda_compiler(ops: Sequence[str], environ: Mapping[str, str], local_host: LocalHost) -> Iterator[Finding]:
    """The compiler of the ops for a GPU that were not compiled before. `environ`: the ranks' variables."""
    needed = [op for op in ops if op in CUDA_OPS and not _loads_without_nvcc(op, environ)]
    if not local_host.accelerated or not needed or machine.find_nvcc(environ) is not None:
        return
    names = " and ".join(f"`{op}`" for op in needed)
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    place = f"below CUDA_HOME ({home})" if home else "on PATH or in /usr/local/cuda"
    ways = "; ".join(dict.fromkeys(WITHOUT_NVCC[op] for op in needed))
    yield Finding(
        "EN023",
        "error",
        f"DeepSpeed compiles {names} with `nvcc`, which is not {place}",
        notes=("it is not part of the driver; without it the compilation fails before any rank starts",),
        fix=Fix(f"install the CUDA toolkit of torch's CUDA release and set CUDA_HOME; or {ways}"),
    )


def check_gpu_architectures(ops: Sequence[str], environ: Mapping[str, str], local_host: LocalHost) -> Iterator[Finding]:
    """The GPUs to compile for, where ops for a GPU are needed. `environ`: the ranks' variables."""
    value = environ.get(VARIABLE, "")
    unreadable = find_unreadable_architectures(value)
    needed = [op for op in ops if op in CUDA_OPS and not _was_compiled_at_install(op)]
    if not local_host.accelerated or not needed or not unreadable:
        return
    numbers = strip_architecture_suffixes(value)
    instead = f"`{VARIABLE}={numbers}`" if numbers else f"numbers alone, such as `{VARIABLE}=9.0`"
    yield Finding(
        "EN026",
        "error",
        f"`{VARIABLE}={value}`: DeepSpeed reads numbers such as `9.0`, and not {' or '.join(map(_quote, unreadable))}",
        notes=(f"the build of {' and '.join(map(_quote, needed))} would end with a ValueError",),
        fix=Fix(
            f"unset it, then DeepSpeed compiles for the GPU that it finds; or set {instead}, here or in `launch.env`"
        ),
    )


def _loads_without_nvcc(op: str, environ: Mapping[str, str]) -> bool:
    """Was the op compiled when DeepSpeed was installed (DS_BUILD_OPS), or before and the toolkit's folder is there?
    DeepSpeed runs nvcc for `async_io` even then (`op_builder/builder.py`, `installed_cuda_version`).
    """
    if _was_compiled_at_install(op):
        return True
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    library = torch_extensions_dir(environ) / op / f"{op}.so"
    return op != "async_io" and Path(home).is_dir() and library.is_file()


def _quote(name: str) -> str:
    return f"`{name}`"


def _was_compiled_at_install(op: str) -> bool:
    folder: Path | None = installed_source_folder()
    return folder is not None and any(folder.glob(f"ops/*/{op}_op*.so"))
