# SPDX-License-Identifier: Apache-2.0
"""`torch.compile` through DeepSpeed's engine, and DeepCompile where the JSON has it."""

from __future__ import annotations

import torch
from deepspeed.accelerator import get_accelerator

from harness.runtime.engine_protocol import Engine
from harness.runtime.user_errors import user_error
from harness.spec.sections.training_spec import TrainSpec


def compile_engine(engine: Engine, train: TrainSpec) -> None:
    """Compile the engine's model at its first forward, if `train.torch_compile` is set.

    Raises UserError (MD159 a backend that torch does not have, DeepCompile where it cannot be built).
    """
    if not train.torch_compile:
        return
    backend = train.torch_compile_backend
    backends = torch.compiler.list_backends(exclude_tags=None)
    if backend is not None and backend not in backends:
        raise user_error(
            "MD159",
            f"torch has no compiler backend `{backend}` here",
            key="train.torch_compile_backend",
            notes=(f"it has {', '.join(f'`{name}`' for name in backends)}",),
            fix="remove `train.torch_compile_backend`",
        )
    if engine.is_deepcompile_enabled() and get_accelerator().device_name() == "cpu":
        raise user_error(
            "MD159",
            "DeepCompile cannot be used on the CPU: its kernels need CUDA",
            key="deepspeed.compile.deepcompile",
            fix="remove `deepspeed.compile`; `train.torch_compile` works without",
        )
    engine.compile(**({"backend": backend} if backend else {}))
