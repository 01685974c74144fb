# SPDX-License-Identifier: Apache-2.0
"""Imports DeepSpeed's Muon and bitsandbytes without the compiler of torch.

Upstream: Every engine imports the module of Muon to ask whether its optimizer is one, and `transformers` imports
bitsandbytes, where it is installed, with its learning rate schedules (by way of peft). Both have functions decorated
with `torch.compile`, which imports the compiler.

Patch: While these two are imported, `torch.compile` returns a function that compiles at its first call.

Gain: 1.7 s of CPU time on each rank for Muon, 1.0 s and 40 MiB for bitsandbytes (`benchmarks/LOG.md`, start-up and
bitsandbytes); `tests/training/patches/test_each_patch.py` checks that the compiler is not imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib.util import find_spec
from typing import Any

from harness.patches.patch_registry import Patch, Target

_MUON_MODULE = "deepspeed.runtime.zero.muon.muon_optimizer"


def import_without_compile() -> None:
    """Import both, unless that has happened; bitsandbytes where peft, which imports it, is installed too.

    The loop calls it before it builds the model, since LoRA imports peft there.
    """
    names = [_MUON_MODULE, *(["bitsandbytes"] if find_spec("peft") and find_spec("bitsandbytes") else [])]
    missing = [name for name in names if name not in sys.modules]
    if not missing:
        return
    import torch

    torch_compile = torch.compile
    torch.compile = _compile_on_first_call(torch_compile)
    try:
        for name in missing:
            with suppress(ImportError):  # a release that has it elsewhere, or one that does not fit this machine
                importlib.import_module(name)
    finally:
        torch.compile = torch_compile


def _compile_on_first_call(torch_compile: Callable[..., Any]) -> Callable[..., Any]:
    """A `torch.compile` that is called as `compile(function, **options)` or as a decorator, with options or without."""

    def decorate(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
        if function is None:
            return lambda decorated: decorate(decorated, **options)
        compiled: list[Callable[..., Any]] = []

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not compiled:
                compiled.append(torch_compile(function, **options))
            return compiled[0](*args, **kwargs)

        return call

    return decorate


PATCH = Patch(
    name="lazy-compile",
    kind="start-up",
    targets=(Target("deepspeed.runtime.zero.muon.original_muon:muon_update", "37e63fbfab5d9e0e"),),
    remove_when="importing `deepspeed.runtime.zero.muon` and `bitsandbytes` does not import `torch._inductor`",
    when="all runs",
    before_initialize=import_without_compile,
)
