"""Remembers the parameters of ZeRO-3's leaf modules, which are gathered as one.

DeepSpeed lists them by a walk through all modules below, each time that the leaf module is fetched, released or looked
up. With `nvtx_ranges.py` this saves a quarter of all Python calls of a step (`benchmarks/tuned_defaults.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import deepspeed.runtime.zero.parameter_offload as offload
import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator
from deepspeed.utils.z3_leaf_module import z3_leaf_module

_CACHE_ATTRIBUTE = "_harness_parameters"
_original_iter_params: Callable[..., Iterable[Any]] = coordinator.iter_params


def cache_leaf_parameters() -> None:
    """For every engine of this process, from now on; doing it twice changes nothing."""
    coordinator.iter_params = offload.iter_params = _iter_cached_params


@contextmanager
def leaf_parameter_cache() -> Iterator[None]:
    """The patch in this context alone: to compare both ways in one process."""
    cache_leaf_parameters()
    try:
        yield
    finally:
        coordinator.iter_params = offload.iter_params = _original_iter_params


def _iter_cached_params(module: Any, recurse: bool = False) -> Iterable[Any]:
    """DeepSpeed's, but a leaf module remembers its list. What it uses of other modules may become known later."""
    if not recurse or not z3_leaf_module(module):
        return _original_iter_params(module, recurse)
    parameters = module.__dict__.get(_CACHE_ATTRIBUTE)
    if parameters is None:
        parameters = module.__dict__[_CACHE_ATTRIBUTE] = tuple(module.parameters())
    return chain(parameters, (parameter for _, parameter in module.ds_external_parameters()))
