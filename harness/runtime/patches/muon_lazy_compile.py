"""DeepSpeed's Muon, imported without the compiler of torch.

Every engine imports that module to ask whether its optimizer is a Muon. Its functions are under `torch.compile`, which
imports the whole compiler: two seconds of CPU time on each rank. Here each is compiled when it is first called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import torch

_MUON_MODULE = "deepspeed.runtime.zero.muon.muon_optimizer"


def import_muon_without_compile() -> None:
    """Import it, unless that has happened."""
    if _MUON_MODULE in sys.modules:
        return
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
