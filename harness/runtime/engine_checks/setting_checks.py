# SPDX-License-Identifier: Apache-2.0
"""Engine checks of settings: ZeRO stage, batch sizes, clipping, compilation, accelerator, files on NVMe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    NotApplicable,
    check_equal,
    check_failed,
    check_passed,
    engine_check,
    format_ranks,
    format_value,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.nvme_io import disk_usage

ZERO_STAGE = engine_check(
    "AT001",
    lambda observations: int(observations.engine.zero_optimization_stage()),
    lambda expected, values: check_equal(expected.zero_stage, values, "the engine's ZeRO stage"),
)


def _observe_gradient_clipping(observations: Observations) -> Any:
    wrapper_norm = getattr(observations.engine.optimizer, "clip_grad", None)
    return {"engine": observations.engine.gradient_clipping(), "wrapper": wrapper_norm}


def _evaluate_gradient_clipping(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    max_norm = expected.gradient_clipping
    if isinstance(max_norm, (int, float)) and not isinstance(max_norm, bool) and max_norm < 0:
        return check_failed(f"gradients are clipped at {max_norm}, which DeepSpeed treats as no clipping", max_norm)
    result = check_equal(max_norm, [values["engine"] for values in rank_values], "the gradient norm to clip at")
    wrapper_norms = [values["wrapper"] for values in rank_values if values["wrapper"] is not None]
    if result.state == "holds" and any(value != max_norm for value in wrapper_norms):
        return check_failed(
            f"the optimizer's wrapper clips at {format_value(wrapper_norms[0])}, should be {format_value(max_norm)}",
            wrapper_norms[0],
        )
    return result


GRADIENT_CLIPPING = engine_check("AT006", _observe_gradient_clipping, _evaluate_gradient_clipping)


def _observe_engine_batch_sizes(observations: Observations) -> Any:
    engine = observations.engine
    return [engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps(), engine.train_batch_size()]


def _evaluate_engine_batch_sizes(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    # With AutoTP, DeepSpeed's own product counts every rank (gate BT005); the loop draws the true batch.
    dims = expected.parallel_dims
    ranks_per_data_rank = dims.autotp * dims.sequence if dims.autotp > 1 else 1
    total = None if expected.global_batch_size is None else expected.global_batch_size * ranks_per_data_rank
    batch_sizes = (expected.micro_batch_size, expected.gradient_accumulation_steps, total)
    names = ("the micro-batch", "accumulation", "DeepSpeed's global batch")
    for i, (value, name) in enumerate(zip(batch_sizes, names, strict=True)):
        if value is not None:
            result = check_equal(value, [values[i] for values in rank_values], name)
            if result.state != "holds":
                return result
    return check_passed(dict(zip(("micro", "accumulation", "global"), rank_values[0], strict=True)))


ENGINE_BATCH_SIZES = engine_check("AT007", _observe_engine_batch_sizes, _evaluate_engine_batch_sizes)


COMPILE_MODE = engine_check(
    "AT015",
    lambda observations: bool(observations.engine.is_compiled),
    lambda expected, values: check_equal(expected.compile_enabled, values, "whether the engine is compiled"),
)


def _observe_nvme_files(observations: Observations) -> Any:
    optimizer: Any = observations.engine.optimizer  # ZeRO-3's, with a method that is private
    if not observations.expected.nvme_paths:
        raise NotApplicable("the spec puts nothing on NVMe")
    is_swapping = getattr(optimizer, "swap_optimizer", False)
    large_groups = (
        [i for i in range(len(optimizer.fp16_groups)) if optimizer._swappable_optimizer_subgroup(i)]
        if is_swapping
        else []
    )
    folders = list(dict.fromkeys(map(Path, observations.expected.nvme_paths)))
    return {"large": len(large_groups), "bytes": disk_usage(folders)}


def _evaluate_nvme_files(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    if expected.offload_optimizer != "nvme" or not any(values["large"] for values in rank_values):
        return CheckResult("skipped", "every part is smaller than 1 MiB, which DeepSpeed does not swap")
    for rank, values in enumerate(rank_values):
        if values["large"] and not values["bytes"]:
            return check_failed(
                f"no file is below {', '.join(f'`{p}`' for p in expected.nvme_paths)} on rank {rank}", values
            )
    return check_passed(rank_values[0])


NVME_FILES = engine_check("AT017", _observe_nvme_files, _evaluate_nvme_files)


def _observe_accelerator(observations: Observations) -> Any:
    if not observations.expected.uses_accelerators:
        raise NotApplicable("the launch counted no accelerators")
    return observations.engine.device.type


def _evaluate_accelerator(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    cpu_ranks = [rank for rank, kind in enumerate(rank_values) if kind == "cpu"]
    if not cpu_ranks:
        return check_passed(rank_values[0])
    return check_failed(
        f"ranks compute on the CPU{format_ranks(cpu_ranks, len(rank_values))}, and the launch counted accelerators",
        "cpu",
    )


ACCELERATOR = engine_check("AT018", _observe_accelerator, _evaluate_accelerator)
