# SPDX-License-Identifier: Apache-2.0
"""Ops that need nvcc, as the installed DeepSpeed builds them. Milliseconds."""

from __future__ import annotations

import re

import pytest

from harness.facts.deepspeed_version import installed_source_folder
from harness.facts.required_ops import COMPILE_SECONDS, CUDA_OPS, WITHOUT_NVCC, required_ops

_BUILDER = re.compile(r"^class \w+\((\w+)\):.*?^    NAME = ['\"](\w+)", re.MULTILINE | re.DOTALL)


def test_ops_for_a_gpu_are_those_of_deepspeeds_cuda_builder() -> None:
    folder = installed_source_folder()
    if folder is None:
        pytest.skip("needs DeepSpeed's files")
    files = [(folder / "ops" / "op_builder").glob("*.py"), (folder / "ops" / "op_builder" / "cpu").glob("c*.py")]
    bases = {name: base for group in files for file in group for base, name in _BUILDER.findall(file.read_text())}
    assert set(COMPILE_SECONDS) - set(bases) == {"cpu_adam_one_pass"}  # the harness's own, by the builder of `cpu_adam`
    assert {op for op in COMPILE_SECONDS if bases.get(op) == "CUDAOpBuilder"} == CUDA_OPS == set(WITHOUT_NVCC)


@pytest.mark.parametrize(
    ("stage", "key", "accelerated", "expected"),
    [
        (3, "zero_quantized_weights", True, ("quantizer", "cpu_adam")),
        (3, "zero_quantized_nontrainable_weights", True, ("quantizer", "cpu_adam")),
        (3, "zero_quantized_gradients", True, ("quantizer", "cpu_adam")),
        (2, "zero_quantized_weights", True, ("cpu_adam",)),
        (3, "zero_quantized_weights", False, ("deepspeed_shm_comm", "cpu_adam")),
    ],
)
def test_quantized_shards_need_their_kernels(
    stage: int, key: str, accelerated: bool, expected: tuple[str, ...]
) -> None:
    """All ranks of ZeRO++ would compile them at once, at the first gather."""
    zero = {"stage": stage, key: True, "offload_optimizer": {"device": "cpu"}}
    config = {"zero_optimization": zero, "optimizer": {"type": "AdamW"}}
    assert required_ops(config, accelerated=accelerated) == expected


@pytest.mark.parametrize(
    ("device", "expected"), [("cpu", ("cpu_adam", "cpu_adam_one_pass")), ("none", ("fused_adam",))]
)
def test_one_pass_needs_its_op_where_the_cpu_steps(device: str, expected: tuple[str, ...]) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": device}}
    config = {"zero_optimization": zero, "optimizer": {"type": "AdamW"}}
    assert required_ops(config, accelerated=True, steps_in_one_pass=True) == expected
