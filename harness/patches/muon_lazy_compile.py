# SPDX-License-Identifier: Apache-2.0
"""Imports DeepSpeed's Muon without the compiler of torch.

Upstream: Every engine imports the module of Muon to ask whether its optimizer is one. Its functions are decorated with
`torch.compile`, which imports the compiler.

Patch: While that module is imported, `torch.compile` returns a function that compiles at its first call.

Gain: 1.7 s of CPU time on each rank (`benchmarks/LOG.md`, start-up); `tests/training/patches/test_each_patch.py`
checks that the compiler is not imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from harness.patches.patch_registry import Patch, Target

_MUON_MODULE = "deepspeed.runtime.zero.muon.muon_optimizer"


def import_muon_without_compile() -> None:
    """Import it, unless that has happened."""
    if _MUON_MODULE in sys.modules:
        return
    import torch

    torch_compile = torch.compile
    torch.compile = _compile_on_first_call(torch_compile)  # type: ignore[assignment]
    try:
        with suppress(ImportError):  # a release that has it elsewhere
            importlib.import_module(_MUON_MODULE)
    finally:
        torch.compile = torch_compile


def _compile_on_first_call(torch_compile: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: list[Callable[..., Any]] = []

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not compiled:
                compiled.append(torch_compile(function))
            return compiled[0](*args, **kwargs)

        return call

    return decorate


PATCH = Patch(
    name="muon-lazy-compile",
    kind="start-up",
    targets=(Target("deepspeed.runtime.zero.muon.original_muon:muon_update", "37e63fbfab5d9e0e"),),
    remove_when="importing `deepspeed.runtime.zero.muon` does not import `torch._inductor`",
    when="all runs",
    before_initialize=import_muon_without_compile,
)
