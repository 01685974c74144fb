# SPDX-License-Identifier: Apache-2.0
"""Caches the list of parameters of ZeRO-3's leaf modules, which are gathered as one.

Upstream: `iter_params` walks through all modules below a leaf module each time that it is fetched, released or looked
up.

Patch: A leaf module remembers its own parameters. External parameters, which may become known later, are listed again
each time.

Gain: 25,955 Python calls a step of a small Llama instead of 27,765, and no measurable difference in CPU time over 9
rounds (`benchmarks/tuned_defaults.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from harness.patches.patch_registry import Patch, Target

_CACHE_ATTRIBUTE = "_harness_parameters"


def cache_leaf_parameters() -> None:
    """For every engine of this process, from now on; doing it twice changes nothing."""
    import deepspeed.runtime.zero.parameter_offload as offload
    import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator
    from deepspeed.utils.z3_leaf_module import z3_leaf_module

    iter_params = coordinator.iter_params
    if hasattr(iter_params, "original"):
        return

    def iter_cached_params(module: Any, recurse: bool = False) -> Iterable[Any]:
        """A leaf module remembers its own list. What it uses of other modules may become known later."""
        if not recurse or not z3_leaf_module(module):
            return iter_params(module, recurse)  # type: ignore[no-any-return]
        parameters = module.__dict__.get(_CACHE_ATTRIBUTE)
        if parameters is None:
            parameters = module.__dict__[_CACHE_ATTRIBUTE] = tuple(module.parameters())
        return chain(parameters, (parameter for _, parameter in module.ds_external_parameters()))

    iter_cached_params.original = iter_params  # type: ignore[attr-defined]
    coordinator.iter_params = offload.iter_params = iter_cached_params


@contextmanager
def leaf_parameter_cache() -> Iterator[None]:
    """The patch in this context alone: to compare both ways in one process."""
    import deepspeed.runtime.zero.parameter_offload as offload
    import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator

    iter_params = coordinator.iter_params
    cache_leaf_parameters()
    try:
        yield
    finally:
        coordinator.iter_params = offload.iter_params = iter_params


PATCH = Patch(
    name="zero3-leaf-params",
    kind="performance",
    targets=(
        Target("deepspeed.runtime.zero.partitioned_param_coordinator:iter_params", "302e8d02ec33ce48"),
        Target("deepspeed.runtime.zero.parameter_offload:iter_params", "dd2008b11e00a4c0"),
        Target("deepspeed.utils.z3_leaf_module:z3_leaf_module", "fe9d4354d16b9795"),
    ),
    remove_when="DeepSpeed keeps the list of a leaf module's parameters",
    when="stage 3",
    is_needed=lambda run: run.stage == 3,
    before_initialize=cache_leaf_parameters,
)
