# SPDX-License-Identifier: Apache-2.0
"""Findings about a run on this machine: GPUs, memory, disks and weights that its plan needs and that are not here.

A spec's `cluster:` describes the machine of the plan. Where this machine runs the spec, its own numbers count.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.facts.devices import find_device
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.hostinfo.hub_access import is_hub_offline, is_hub_unreachable
from harness.hostinfo.stored_models import is_repository_cached
from harness.run.resolved_run import ResolvedRun
from harness.spec.named_paths import is_hub_name
from harness.units import format_bytes, pluralize

if TYPE_CHECKING:
    from harness.plan.planner import Plan

_GATE = "EN027"
_RANKS = "launch.num_gpus"


def is_run_here(run: ResolvedRun) -> bool:
    """Would this machine run all ranks of the spec?"""
    return run.kind == "spec" and run.cluster is None


def runs_on_local_cpu(run: ResolvedRun) -> bool:
    """Would it run them on its CPU?"""
    return is_run_here(run) and not _devices_of(run)


def on_this_machine(run: ResolvedRun, given: Collection[str] = ()) -> ResolvedRun:
    """The run with the memory and the disks of this machine in place of those of `cluster:`, to be planned; not of the
    keys in `given`, which a command line decides.
    """
    devices, cluster = _devices_of(run), run.spec.cluster
    sizes: dict[str, object] = {"host_memory": machine.host_memory().total or None}
    if not devices:
        sizes |= {"gpu": "cpu", "gpu_memory": None, "gpu_tflops": None}
    elif gpu := _smallest(devices):
        sizes["gpu_memory"] = gpu
    if (free := _free_on_disks(run)) is not None:
        sizes["nvme"] = free
    changed = cluster.model_copy(update={k: v for k, v in sizes.items() if (v or not devices) and k not in given})
    return run._replace(spec=run.spec.model_copy(update={"cluster": changed}))


def plan_here(run: ResolvedRun) -> Plan:
    """The plan of the run on this machine, without alternatives."""
    from harness.plan.planner import make_plan

    return make_plan(on_this_machine(run), Path.cwd(), with_alternatives=False)


def check_devices(run: ResolvedRun) -> Iterator[Finding]:
    """An error where this machine has no GPU for a run that is planned for some, or fewer than ranks."""
    if _GATE in run.spec.ignore:
        return
    kind = find_device(run.spec.cluster.gpu) if run.spec.cluster.gpu else None
    devices, ranks = _devices_of(run), run.parallel_dims.world_size or 1
    if kind is not None and not kind.is_cpu and not devices and not machine.is_cpu_forced(_environ_of(run)):
        title = "launch it on a host with such GPUs; to train on this CPU, take `cluster` out: `--set cluster=null`"
        message = f"the run is planned for {kind.name}, and its ranks would find no GPU on this machine"
        yield Finding(_GATE, "error", message, "cluster.gpu", fix=Fix(title))
    elif devices and ranks > len(devices):
        message = f"the run has {ranks} ranks, and this machine has {pluralize(len(devices), 'GPU')}"
        yield Finding(_GATE, "error", message, _RANKS, fix=Fix(f"set `{_RANKS}: {len(devices)}`"))


def check_sizes(run: ResolvedRun, plan: Plan) -> Iterator[Finding]:
    """Errors where training needs more memory or disk than this machine has, of the planned range the least; a warning
    where it barely has enough. `plan`: that of the run here.
    """
    if _GATE in run.spec.ignore:
        return
    devices = _devices_of(run)
    memory = plan.memory
    if memory is None:
        return
    gpu, host, free = _smallest(devices), machine.host_memory().total, _free_on_disks(run)
    found = []
    least, training = memory.allocated_peak_range[0], memory.host_bytes_at(memory.training_peak_phase)
    if gpu and least > gpu:
        found.append(_too_small("a rank needs", least, f"the {devices[0].name} here has", gpu, "cluster.gpu"))
    if host and training > host:
        found.append(_too_small("this host needs", training, "this machine has", host, _RANKS))
    if free is not None and memory.nvme_bytes > free:
        what = "the states on NVMe need"
        found.append(_too_small(what, memory.nvme_bytes, "the disk has", free, "zero.offload_optimizer", " free"))
    fix = Fix("take fewer ranks or a smaller micro-batch; `harness plan --here` has alternatives that fit")
    tight = [f._replace(key=_RANKS, fix=fix) for f in plan.findings if f.gate == "MM005" and runs_on_local_cpu(run)]
    yield from found or tight


def _too_small(needs: str, needed: int, has: str, size: int, key: str, suffix: str = "") -> Finding:
    message = f"{needs} {format_bytes(needed)} by the plan, and {has} {format_bytes(size)}{suffix}"
    fix = Fix("take what fits of `harness plan SPEC --here --search`, or launch it on a larger machine")
    return Finding(_GATE, "error", message, key, fix=fix)


def check_weights(run: ResolvedRun, *, planned: bool) -> Iterator[Finding]:
    """Weights of the Hub that are not in the cache: an error where a launch could not fetch them either. `planned`:
    nothing starts, so the Hub is not contacted.
    """
    model = run.spec.model
    name = model.name_or_path
    if (
        _GATE in run.spec.ignore
        or not name
        or model.random_init
        or Path(name).expanduser().exists()
        or not is_hub_name(name)
    ):
        return
    if is_repository_cached(name, model.revision):
        return
    key = "model.name_or_path"
    if planned:
        yield Finding(_GATE, "info", f"`{name}` is not on this machine: a launch fetches it from the Hub", key)
    elif is_hub_offline() or is_hub_unreachable():
        why = "HF_HUB_OFFLINE is set" if is_hub_offline() else "the Hub cannot be reached"
        fix = Fix("copy the model here and name its folder, or fill the cache: `hf download`")
        yield Finding(_GATE, "error", f"`{name}` is not in the cache of this machine, and {why}", key, fix=fix)


def _environ_of(run: ResolvedRun) -> dict[str, str]:
    return {**os.environ, **run.spec.launch.env}


def _devices_of(run: ResolvedRun) -> tuple[machine.Accelerator, ...]:
    return machine.accelerators_for(_environ_of(run))


def _smallest(devices: tuple[machine.Accelerator, ...]) -> int | None:
    return min((device.memory for device in devices if device.memory), default=None)


def _free_on_disks(run: ResolvedRun) -> int | None:
    """Free bytes of the fullest disk of `nvme_path`; None without one."""
    sections = (run.spec.zero.offload_optimizer, run.spec.zero.offload_param)
    paths = {section.nvme_path for section in sections if section is not None and section.nvme_path}
    sizes = (machine.free_bytes(Path(path).expanduser()) for path in paths)
    return min((size for size in sizes if size is not None), default=None)
