# SPDX-License-Identifier: Apache-2.0
"""The cases of `releases.py`, by name: DeepSpeed's JSON but for batch sizes, micro-batches a step, who calls."""

from __future__ import annotations

from typing import Any

WRONG = 0.05
"""A difference above this is no rounding: bf16 makes 0.01, a micro-batch that is left out 0.3 and more."""

CALLS = ("engine", "trainer", "trainer-boundary")
FORMATS: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}}
ORDERLY = {"stage3_param_persistence_threshold": 0, "overlap_comm": False}
"""For stage 3: with the defaults, some releases read a parameter on gloo before it is gathered, now and then."""
CPU = {"offload_optimizer": {"device": "cpu"}}


ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 0.05, "torch_adam": True}}}


def case(stage: int, parts: int = 2, call: str = "engine", **more: Any) -> dict[str, Any]:
    """One case; `zero` is what its `zero_optimization` has besides the stage. The rates are high, so that a wrong
    gradient shows in a bf16 weight; torch's optimizers need nothing compiled.
    """
    config = {
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **(ORDERLY if stage == 3 else {}), **more.pop("zero", {})},
        **more,
    }
    return {"config": config, "parts": parts, "call": call}


def _of_stages() -> dict[str, dict[str, Any]]:
    found = {}
    for stage in range(4):
        for call in CALLS:
            for name, block in FORMATS.items():
                found[f"stage {stage}, {name}, 2 parts, {call}"] = case(stage, 2, call, **block)
        found[f"stage {stage}, fp32, 4 parts, engine"] = case(stage, 4)
        found[f"stage {stage}, fp32, 4 parts, trainer"] = case(stage, 4, "trainer")
        found[f"stage {stage}, fp32, 1 part, trainer"] = case(stage, 1, "trainer")
    found["stage 0, bf16, 1 part, engine"] = case(0, 1, **FORMATS["bf16"])
    return found


def _of_offload() -> dict[str, dict[str, Any]]:
    found = {}
    for stage in (1, 2, 3):
        for parts, call in ((2, "engine"), (4, "engine"), (2, "trainer")):
            name = f"stage {stage}, optimizer on the CPU, {parts} parts, {call}"
            found[name] = case(stage, parts, call, zero=CPU)
        found[f"stage {stage}, bf16, optimizer on the CPU, 4 parts, engine"] = case(
            stage, 4, zero=CPU, **FORMATS["bf16"]
        )
    for stage in (1, 2):
        for name, zero, clip in (("overlap_comm true", {"overlap_comm": True}, 0.0), ("clipped at 1", {}, 1.0)):
            both = {"zero": {**CPU, **zero}, "gradient_clipping": clip}
            found[f"stage {stage}, {name}, optimizer on the CPU, 4 parts, engine"] = case(stage, 4, **both)
    found["stage 3, all on the CPU, 2 parts, trainer"] = case(
        3, 2, "trainer", zero={**CPU, "offload_param": {"device": "cpu"}}
    )
    return found


def _of_options() -> dict[str, dict[str, Any]]:
    loose: dict[str, Any] = {"zero": {"contiguous_gradients": False}}
    overlapped: dict[str, Any] = {"zero": {"overlap_comm": True}}
    clipped: dict[str, Any] = {"gradient_clipping": 1.0}
    options: dict[str, dict[str, Any]] = {
        "contiguous_gradients false": loose,
        "reduce_scatter false": {"zero": {"reduce_scatter": False}},
        "overlap_comm true": overlapped,
        "round_robin_gradients true": {"zero": {"round_robin_gradients": True}},
        "small buckets": {"zero": {"reduce_bucket_size": 500, "allgather_bucket_size": 500}},
        "one rank a bucket": {"zero": {"use_multi_rank_bucket_allreduce": False}},
        "Adam": ADAM,
        "clipped at 1": clipped,
        "bf16 accumulated in fp32": {**FORMATS["bf16"], "data_types": {"grad_accum_dtype": "fp32"}},
        "bf16 accumulated in bf16": {**FORMATS["bf16"], "data_types": {"grad_accum_dtype": "bf16"}},
    }
    found = {f"stage 2, {name}, 2 parts, engine": case(2, **more) for name, more in options.items()}
    under_trainer = {"Adam": ADAM, "clipped at 1": clipped, "Adam, clipped at 1": {**ADAM, **clipped}}
    for stage in (1, 2, 3):
        for name, more in under_trainer.items():
            found[f"stage {stage}, {name}, 4 parts, trainer"] = case(stage, 4, "trainer", **more)
    for stage in (1, 2):
        found[f"stage {stage}, contiguous_gradients false, 1 part, engine"] = case(stage, 1, **loose)
    found["stage 1, contiguous_gradients false, 2 parts, engine"] = case(1, **loose)
    found["stage 1, overlap_comm true, 2 parts, engine"] = case(1, **overlapped)
    return found


def _of_autocast() -> dict[str, dict[str, Any]]:
    """Last, because 0.17.5 leaves it on for the engines that come after."""
    block: dict[str, Any] = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    found = {"stage 2, autocast to bf16, 2 parts, engine": case(2, **block)}
    return found | {
        f"stage {stage}, autocast to bf16, 2 parts, trainer": case(stage, 2, "trainer", **block) for stage in (1, 2, 3)
    }


CASES: dict[str, dict[str, Any]] = _of_stages() | _of_offload() | _of_options() | _of_autocast()
