"""Fewer Python calls in a step of ZeRO-3: DeepSpeed looks up again and again what does not change.

A module that is gathered as one (a leaf module) has its parameters listed by a walk through all modules below it, each
time that it is fetched, released or asked for. NVTX ranges are put around most functions of DeepSpeed's ZeRO, also
where nobody listens. Both together are a quarter of all calls of a step (`benchmarks/tuned_defaults.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import deepspeed.runtime.zero.parameter_offload as offload
import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator
from deepspeed.utils import nvtx
from deepspeed.utils.z3_leaf_module import z3_leaf_module

_CACHE_ATTRIBUTE = "_harness_parameters"
_PROFILER_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
"""What Nsight puts into the environment of a program that it watches."""
_original_iter_params: Callable[..., Iterable[Any]] = coordinator.iter_params


def cache_leaf_parameters() -> None:
    """For every engine of this process, from now on; doing it twice changes nothing."""
    coordinator.iter_params = offload.iter_params = _iter_cached_params
    nvtx.enable_nvtx = any(name in os.environ for name in _PROFILER_VARIABLES)


@contextmanager
def leaf_parameter_cache() -> Iterator[None]:
    """For so long: to compare both ways in one process."""
    before = nvtx.enable_nvtx
    cache_leaf_parameters()
    try:
        yield
    finally:
        coordinator.iter_params = offload.iter_params = _original_iter_params
        nvtx.enable_nvtx = before


def _iter_cached_params(module: Any, recurse: bool = False) -> Iterable[Any]:
    """DeepSpeed's, but a leaf module remembers its list. What it uses of other modules may become known later."""
    if not recurse or not z3_leaf_module(module):
        return _original_iter_params(module, recurse)
    kept = module.__dict__.get(_CACHE_ATTRIBUTE)
    if kept is None:
        kept = module.__dict__[_CACHE_ATTRIBUTE] = tuple(module.parameters())
    return chain(kept, (parameter for _, parameter in module.ds_external_parameters()))
