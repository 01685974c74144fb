# SPDX-License-Identifier: Apache-2.0
"""Offload: swapping to NVMe, the processes of ZenFlow and SuperOffload. `harness.diagnosis.messages` leads to them."""

from __future__ import annotations

from harness.diagnosis.causes.zero_failures import INTERNAL_PAGE
from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG110",
        "optimizer-process-ended",
        "the process that runs the offloaded optimizer ended or no longer answers",
        "read its own traceback above, which has the cause; if there is none, the kernel most likely killed it "
        "because host memory ran out: look for `Killed process` in `dmesg`, start fewer ranks per host, or leave out "
        "`zenflow` or `offload_optimizer.super_offload`",
        (),
    ),
    FailureCause(
        "LG111",
        "swap-bookkeeping",
        "an internal check of NVMe swapping failed",
        "raise `buffer_count` and `buffer_size` of `offload_param` and `offload_optimizer`, set `pipeline_read` and "
        "`pipeline_write` to false, and remove what other jobs left in `nvme_path`; if the error stays, offload to "
        "`cpu` and report it to DeepSpeed with the JSON and the traceback",
        (),
        page=INTERNAL_PAGE,
    ),
    FailureCause(
        "LG112",
        "swap-folder-already-in-checkpoint",
        "several ranks copied their NVMe swap folders into the same folder of the checkpoint, or it already exists",
        "update DeepSpeed (0.18.0 and newer give each rank its own folder), save under a new tag, or offload "
        "the optimizer to `cpu`",
        (),
    ),
    FailureCause(
        "LG113",
        "zenflow-with-nvme",
        "ZenFlow got a gradient or a partition that it cannot split, such as one of NVMe offload",
        "use `offload_optimizer.device: cpu` with `zenflow`, or leave `zenflow` out",
        (),
    ),
    FailureCause(
        "LG114",
        "states-not-movable",
        "`offload_states` or `reload_states` of the engine does not support this setting",
        "use them with an optimizer that is on the device (DeepSpeed's FusedAdam at stage 3) and without "
        "`offload_param`, and give `OffloadDeviceEnum.cpu`",
        (),
    ),
)
