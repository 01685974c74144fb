# SPDX-License-Identifier: Apache-2.0
"""The compiled DeepSpeed ops that ranks load for a configuration. Pure; `harness.launching.ops.local_build` compiles
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OPS = (
    ("deepspeed_shm_comm", 40, ""),
    ("cpu_adam", 60, ""),
    ("cpu_adam_one_pass", 50, ""),
    ("cpu_adagrad", 60, ""),
    ("cpu_lion", 60, ""),
    ("fused_adam", 90, "set `deepspeed.optimizer.params.torch_adam: true`, or offload the optimizer to the CPU"),
    ("fused_lion", 90, "offload the optimizer to the CPU"),
    ("fused_lamb", 90, "take another optimizer"),
    ("quantizer", 120, "switch `zero_quantized_weights` and the other `zero_quantized` keys off"),
    ("pin_memory", 36, ""),
    ("async_io", 230, "offload to the CPU instead of nvme"),
)
COMPILE_SECONDS = {op: seconds for op, seconds, _ in _OPS}
"""Seconds of each op on two cores with gcc at -O3; only an estimate of the wait for people, of `quantizer` a guess."""
WITHOUT_NVCC = {op: way for op, _, way in _OPS if way}
"""The way to train without each op that needs nvcc where torch sees an NVIDIA GPU (`CUDAOpBuilder` in DeepSpeed's
`op_builder`): `async_io` too, though it has no CUDA code. The optimizers of the CPU and `pin_memory` need the C++
compiler alone.
"""
CUDA_OPS = frozenset(WITHOUT_NVCC)
_QUANTIZED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def required_ops(
    config: Mapping[str, Any], *, accelerated: bool, pins_natively: bool = False, steps_in_one_pass: bool = False
) -> tuple[str, ...]:
    """Names of the ops in the order of the build, from a rendered DeepSpeed JSON.

    Source: `runtime/engine.py` `_configure_basic_optimizer` (which Adam), `comm/torch.py` `build_shm_op` (only on the
    CPU accelerator), `runtime/swap_tensor/*` (NVMe), `utils/pin_memory.py`, `CUDAQuantizer` of
    `runtime/zero/partition_parameters.py` and `runtime/comm/coalesced_collectives.py` (ZeRO++). `accelerated` is false
    where ranks run on the CPU accelerator; `pins_natively` is true where DeepSpeed's own allocator pins host memory,
    `steps_in_one_pass` where the patch `one-pass-adam` is to be applied.
    """
    zero = config.get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    optimizer_device = (zero.get("offload_optimizer") or {}).get("device", "none")
    param_device = (zero.get("offload_param") or {}).get("device", "none") if stage == 3 else "none"
    ops = [] if accelerated else ["deepspeed_shm_comm"]
    if accelerated and stage == 3 and any(zero.get(key) is True for key in _QUANTIZED):
        ops.append("quantizer")
    optimizer = config.get("optimizer") or {}
    offloaded = optimizer_device in {"cpu", "nvme"}
    name = str(optimizer.get("type", "")).lower()
    if name in {"adam", "adamw", "muon"} and not (optimizer.get("params") or {}).get("torch_adam"):
        ops += ["cpu_adam", *["cpu_adam_one_pass"] * steps_in_one_pass] if offloaded else ["fused_adam"]
    elif name == "lion" or (name == "adagrad" and offloaded):  # on the device Adagrad is torch's
        ops.append(f"cpu_{name}" if offloaded else "fused_lion")
    elif name == "lamb":
        ops.append("fused_lamb")
    if "nvme" in {optimizer_device if stage == 3 else "none", param_device}:
        ops += ["pin_memory", "async_io"]
    elif pins_natively:
        ops.append("pin_memory")
    return tuple(ops)
