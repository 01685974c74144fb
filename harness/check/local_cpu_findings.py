# SPDX-License-Identifier: Apache-2.0
"""Findings about a run on this machine's CPU: fp16 that the processor lacks, and more ranks than cores."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

from harness.facts.devices import find_device
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.run.resolved_run import ResolvedRun

FP16_ON_CPU = "PR017"
_RANKS = "launch.num_gpus"
_FP16_FLAGS = {"avx512_fp16", "avx_ne_convert"}
"""A processor of x86 without both computes nothing in fp16; with one of them, torch decides."""


def check_local_cpu(run: ResolvedRun) -> Iterator[Finding]:
    """The findings about a run that trains on this machine's CPU."""
    precision = run.spec.precision
    if precision.fp16 and not precision.bf16 and _lacks_fp16():
        yield Finding(
            FP16_ON_CPU,
            "error",
            "fp16 does not run on this machine's CPU, which has no AVX512-FP16",
            "precision.fp16",
            notes=("DeepSpeed refuses it on every rank: `Type fp16 is not supported on your device`",),
            fix=Fix(
                "set `precision.fp16` to false and `precision.bf16` to true",
                {"precision.fp16": False, "precision.bf16": True},
                effect="trains in bf16, without loss scaling",
            ),
        )
    ranks, cores = run.parallel_dims.world_size or 1, machine.usable_cores()
    kind = find_device(run.spec.cluster.gpu) if run.spec.cluster.gpu else None
    is_cpu_meant = kind is None or kind.is_cpu or machine.is_cpu_forced({**os.environ, **run.spec.launch.env})
    if ranks > cores and is_cpu_meant:  # EN027 says that GPUs are missing
        yield Finding(
            "EN017",
            "warning",
            f"{ranks} ranks share the {cores} core{'s' if cores > 1 else ''} of this machine, which has no GPU",
            _RANKS,
            notes=("ranks wait for each other at each collective, so a step takes longer than with fewer ranks",),
            fix=Fix(f"set `{_RANKS}: {cores}`", {_RANKS: cores}, effect="the batch is divided differently"),
        )


def _lacks_fp16() -> bool:
    """Is it certain that DeepSpeed refuses fp16? It asks torch, whose import takes seconds."""
    flags = machine.cpu_flags()
    return platform.machine() == "x86_64" and bool(flags) and not flags & _FP16_FLAGS
