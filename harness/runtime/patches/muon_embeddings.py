"""Which weights Muon steps. DeepSpeed goes by names: every matrix whose name has neither `embed` nor `lm_head` in it,
GPT-2's `wte` and `wpe` among them. Muon is meant for hidden matrices; here the embeddings are found by what they are.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import deepspeed
import torch

_MUON_MODULE = "deepspeed.runtime.zero.muon.muon_optimizer"


def import_muon_without_compile() -> None:
    """Import DeepSpeed's Muon, which every engine does to ask whether its optimizer is one.

    Its functions are under `torch.compile`, which imports the whole compiler: two seconds of CPU time on each rank.
    Here each is compiled when it is first called.
    """
    if _MUON_MODULE in sys.modules:
        return
    compile_now = torch.compile
    torch.compile = _compile_on_first_call(compile_now)  # type: ignore[assignment]
    try:
        with suppress(ImportError):  # a release that has it elsewhere
            importlib.import_module(_MUON_MODULE)
    finally:
        torch.compile = compile_now


def _compile_on_first_call(compile_now: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: list[Callable[..., Any]] = []

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if not compiled:
                compiled.append(compile_now(function))
            return compiled[0](*arguments, **named)

        return call

    return decorate


@contextmanager
def exclude_embeddings_from_muon() -> Iterator[None]:
    """While this lasts, `deepspeed.initialize` tags embeddings and the output layer for Muon's Adam."""
    original = deepspeed.set_optimizer_flags

    def tag(config: Any, model: torch.nn.Module) -> None:
        original(config, model)
        for parameter in embedding_weights(model):
            if hasattr(parameter, "use_muon"):
                parameter.use_muon = False  # type: ignore[attr-defined]

    deepspeed.set_optimizer_flags = tag
    try:
        yield
    finally:
        deepspeed.set_optimizer_flags = original


def embedding_weights(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The weights of all tables, and of what maps to the vocabulary."""
    tables = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return tables + ([head.weight] if head is not None else [])
