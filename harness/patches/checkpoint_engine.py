# SPDX-License-Identifier: Apache-2.0
"""Collects DeepSpeed's checkpoint files in memory at a save, and reads them safely at a load.

Upstream: `save_checkpoint` writes on each rank between collectives, so that one rank with a full disk leaves the others
waiting; `load_checkpoint` unpickles whatever a shard holds. The other checkpoint engines are no alternative: the
writers fail at start or cannot reload, and the decoupled one loses the last save of a run (run on 0.19.8).

Patch: For the time of a call, `runtime/checkpoint/deepspeed_io.py` sets four attributes of the engine object:
`checkpoint_engine`, `zero_nvme_offload_optimizer` (the swap files are not copied, the states are in the shards),
`_copy_recovery_script`, and `zero_optimization` for a bf16 pipeline of stage 0, whose shards would not be loaded
without it. The class is not changed.
"""

from __future__ import annotations

from harness.patches.patch_registry import Patch, Target

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"

PATCH = Patch(
    name="checkpoint-engine",
    kind="use",
    targets=(
        Target(f"{_ENGINE}._save_checkpoint", "ebe77c651273c5db"),
        Target(f"{_ENGINE}._save_zero_checkpoint", "59c9da0592757dd2"),
        Target(f"{_ENGINE}._load_checkpoint", "ee2395ce1742fcbb"),
        Target(f"{_ENGINE}._load_zero_checkpoint", "3a0619e56527ef2c"),
        Target(f"{_ENGINE}._copy_recovery_script", "5453dcfdd9aa5d41"),
        Target(f"{_ENGINE}.zero_nvme_offload_optimizer", "0d61327cdf6a18b3"),
        Target(f"{_ENGINE}.zero_optimization", "b5b043d5407d60fc"),
        Target("deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine:TorchCheckpointEngine", "58edb7195a1e990a"),
        Target("transformers.models.auto.auto_factory:_BaseAutoModelClass._model_mapping", "2c72102a13039d7e"),
    ),
    remove_when="DeepSpeed takes a checkpoint engine that collects files, and loads with `weights_only=True`",
    when="runs that save checkpoints or resume from one",
    upstream="https://github.com/deepspeedai/DeepSpeed/issues/8500",
    is_needed=lambda run: run.saves_checkpoints or run.is_resumed,
)
