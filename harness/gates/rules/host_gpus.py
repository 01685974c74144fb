# SPDX-License-Identifier: Apache-2.0
"""The health of the hosts' GPUs, as NVML says it."""

from __future__ import annotations

from harness.gates.host_names import list_reachable_hosts
from harness.gates.registry import Context, Findings, Fix, Severity, hosts_gate
from harness.hostinfo.gpu_health import group_gpu_problems, select_gpus

_HOSTFILE = "launch.hostfile"


def _find_problems(ctx: Context, gate_id: str) -> Findings:
    """The problems of the GPUs that ranks take and that a gate is about."""
    gpus = {
        host.name: select_gpus(host.gpus, host.devices or range(host.slots))
        for host in list_reachable_hosts(ctx)
        if host.gpus is not None
    }
    for group in group_gpu_problems(gpus, gate_id):
        severity: Severity = "error" if group.is_fault else "warning"
        yield ctx.finding(group.message, _HOSTFILE, severity=severity, notes=group.notes, fix=Fix(group.fix))


@hosts_gate("EN080 gpu-with-memory-errors", upstream="crashes", unseen="needs a broken GPU")
def gpu_memory_errors(ctx: Context) -> Findings:
    """A GPU whose memory has errors that it cannot correct.

    NVML counts no uncorrected ECC error since the driver was loaded, no row or page of memory waits for a reset to be
    replaced, and none could not be replaced.

    Why: The next access to such memory ends the process that uses it (Xid 48, 63, 64, 94, 95), and all other ranks wait
    for its rank. NVML's fields were read in its documentation; this was not run on a broken GPU.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {gpus: [{index: 0, ecc_uncorrected: 2}]}
    """
    yield from _find_problems(ctx, "EN080")


@hosts_gate("EN081 gpu-lost", upstream="crashes", unseen="needs a broken GPU")
def lost_gpu(ctx: Context) -> Findings:
    """A GPU that the driver has lost.

    NVML reads every GPU that a rank takes: none has fallen off the bus or needs a reset.

    Why: The rank there fails at its first use of CUDA, and the others wait for it (Xid 79). Read in NVML's
    documentation.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {gpus: [{index: 0, words: GPU is lost}]}
    """
    yield from _find_problems(ctx, "EN081")


@hosts_gate("EN082 gpu-slowed-down", severity=("error", "warning"), unseen="needs a hot GPU")
def slowed_down_gpu(ctx: Context) -> Findings:
    """A GPU that is slowed down by heat or its power supply.

    Before the run no GPU lowers its clocks because of heat (by the driver or by the hardware) or because of the power
    brake, and none is as hot as its slowdown threshold. Low clocks of a GPU without work are no finding.

    Why: All ranks wait for the slowest one, at each collective. A GPU that is too hot before it has work runs at a
    fraction of its clock under load, or is switched off. Read in NVML's documentation.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {gpus: [{index: 0, reasons: 64, temperature: 93, sm_clock: 600, sm_clock_max: 1980}]}
    """
    yield from _find_problems(ctx, "EN082")


@hosts_gate("EN083 nvlink-down", unseen="needs a broken GPU")
def nvlink_down(ctx: Context) -> Findings:
    """A GPU with fewer NVLinks up than others of its model.

    All GPUs of one model that ranks take have as many NVLinks up. Links that none of them has up may not be wired.

    Why: NCCL takes another path where links are missing, over PCIe at about a tenth of the speed, or fails. Read in
    NVML's documentation.

    Example:
        zero.stage: 2
    Probe:
        worker-0: {gpus: [{index: 0, links_up: 18}, {index: 1, links_up: 18}]}
        worker-1: {gpus: [{index: 0, links_up: 17, links_down: 1}]}
    """
    yield from _find_problems(ctx, "EN083")


@hosts_gate("EN084 pcie-link-degraded", severity="warning", unseen="needs a broken GPU")
def degraded_pcie_link(ctx: Context) -> Findings:
    """A GPU with fewer lanes of PCIe than it could have.

    The PCIe link of every GPU has as many lanes as GPU and slot allow; the link of a GPU that computes also has the
    highest generation. A GPU without work lowers the generation to save power.

    Why: Offload, NVMe and the network of other hosts go over this link, at the speed of its lanes; other ranks wait.
    Read in NVML's documentation, by which the driver may also drop lanes of a GPU without work.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {gpus: [{index: 0, pcie_width: 4, pcie_width_max: 16}]}
    """
    yield from _find_problems(ctx, "EN084")


@hosts_gate("EN085 gpu-power-limited", severity="warning", unseen="needs a GPU")
def power_limited_gpu(ctx: Context) -> Findings:
    """A GPU whose power limit is below its default.

    The power limit in force is at least 95 % of the GPU's default, and no GPU that already computes is at its limit.

    Why: Under load the GPU lowers its clocks to stay below the limit. `harness plan` counts the data sheet's speed.
    Read in NVML's documentation.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {gpus: [{index: 0, power_limit: 350, power_limit_default: 700}]}
    """
    yield from _find_problems(ctx, "EN085")
