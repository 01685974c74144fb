# SPDX-License-Identifier: Apache-2.0
"""Times DeepSpeed's collectives.

Upstream: `comms_logger` synchronises the device around each collective, which changes what it measures.

Patch: The methods of DeepSpeed's comm backend, through which all collectives go, are wrapped by a timer that does not
synchronise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from harness.patches.patch_registry import Patch, Target

_COLLECTIVES = tuple(
    """all_gather all_gather_base all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce
    all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list
    gather inference_all_reduce irecv isend monitored_barrier recv reduce reduce_scatter reduce_scatter_tensor
    scatter send""".split()
)


def time_collectives(time_call: Callable[..., Any]) -> None:
    """From now on `time_call(function, *args, **kwargs)` calls each collective. A second call changes nothing."""
    from deepspeed.comm import comm

    backend = comm.cdb
    for name in _COLLECTIVES:
        function = getattr(backend, name, None)
        if function is not None and not hasattr(function, "timed_by_harness"):
            setattr(backend, name, _with_timing(function, time_call))


def _with_timing(function: Callable[..., Any], time_call: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    @wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a graph gets the collective itself, without a timer
            return function(*args, **kwargs)
        return time_call(function, *args, **kwargs)

    timed.timed_by_harness = True  # type: ignore[attr-defined]
    return timed


PATCH = Patch(
    name="timed-collectives",
    kind="measurement",
    targets=(
        Target("deepspeed.comm.comm:cdb", "a5c2e7c2841943ed"),
        Target("deepspeed.comm.torch:TorchBackend.all_reduce", "7eb04c3d62e61ef6"),
    ),
    remove_when="DeepSpeed reports the seconds of its collectives without a device synchronisation for each",
    when="all runs",
)
