# SPDX-License-Identifier: Apache-2.0
"""Bytes that DeepSpeed's own functions of ZenFlow and SuperOffload allocate for `NUMEL` elements, as JSON on stdout.

The functions run on stand-ins for the engine and for the compiled Adam; they change the affinity and the accelerator of
their process, hence a program.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch

os.environ["DS_ACCELERATOR"] = "cpu"
NUMEL = int(sys.argv[1])
CORES = sorted(os.sched_getaffinity(0))


def count(tensors: Any) -> int:
    """Bytes of distinct storages."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


class FakeAdam:
    """The compiled op: keeps what is registered."""

    def __init__(self) -> None:
        self.registered: list[torch.Tensor] = []

    def zenflow_adam_register_group(self, _: Any, *tensors: torch.Tensor) -> None:
        self.registered += tensors

    def zenflow_adam_ctrl_size(self) -> int:
        return 64

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


def zenflow_parent() -> SimpleNamespace:
    """What the ranks hold for one sub-group, after `initialize_optimizer_states`."""
    from deepspeed.runtime.zenflow import engine_stage3

    master = torch.zeros(NUMEL)
    timers = SimpleNamespace(start=lambda: None, stop=lambda: None)
    timers_of = type("Timers", (), {"__call__": lambda *_: timers, "log": lambda *_: None})()
    optimizer = SimpleNamespace(
        fp16_groups=[[0]],
        fp16_partitioned_groups=[[SimpleNamespace(ds_numel=NUMEL)]],
        fp32_partitioned_groups_flat=[master],
        fp16_partitioned_groups_flat=[torch.zeros(NUMEL, dtype=torch.bfloat16)],
        fp16_partitioned_groups_flat_numel=[NUMEL],
        device="cpu",
        optimizer=None,
        swap_optimizer=False,
        offload_optimizer=True,
        offload_optimizer_pin_memory=False,
        subgroup_to_device={0: "cpu"},
        timers=timers_of,
        zf_stage3=True,
        pt_reserved_cores_perc=0.5,
        _swappable_optimizer_subgroup=lambda _: False,
    )
    engine_stage3.initialize_optimizer_states(optimizer)
    return optimizer


def main() -> None:
    import deepspeed.ops.op_builder as builders
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.runtime.superoffload import superoffload_utils
    from deepspeed.runtime.zenflow import zenflow_utils

    fake = FakeAdam()
    builders.CPUAdamBuilder.load = lambda *_, **__: fake
    optimizer = zenflow_parent()
    master = optimizer.fp32_partitioned_groups_flat[0]
    gradients = count(master.overlap_grad)
    zenflow_utils._compute_zf_pt_affinity = lambda _: (CORES, CORES)
    started = SimpleNamespace(Event=lambda: SimpleNamespace(wait=lambda **_: True), Process=None)
    groups: list[Any] = []
    started.Process = lambda **options: groups.append(options["args"][0]) or SimpleNamespace(start=lambda: None)
    import multiprocessing

    multiprocessing.get_context = lambda *_: started  # type: ignore[assignment, return-value]
    zenflow_utils.start_optimizer_process(optimizer)
    stale = count([master.stale_param])
    zenflow_utils.zenflow_optimizer_process(groups[0], torch.zeros(64), SimpleNamespace(set=lambda: None), CORES, True)
    states = count(fake.registered[3:7])
    param = torch.nn.Parameter(torch.zeros(NUMEL))
    param.grad = torch.zeros(NUMEL)
    adam = DeepSpeedCPUAdam([param])
    adam.step_subgroup(0)
    worker_states = count(value for value in adam.state[0].values() if torch.is_tensor(value))
    buffer = count([superoffload_utils._allocate_worker_grad_buffer(NUMEL, False)])
    print(
        json.dumps(
            {
                "zenflow": {"master_gradients": gradients, "staging": stale, "states": states},
                "super_offload": {"states": worker_states, "bucket": buffer},
            }
        )
    )


main()
