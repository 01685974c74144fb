# SPDX-License-Identifier: Apache-2.0
"""Stage 3 with parameters on NVMe: one swap buffer for each parameter in use, each of the largest shard's size."""

from __future__ import annotations

from harness.facts.model_lookup import ModelFacts
from harness.plan.plan_settings import PlanSettings
from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults.default_inputs import DefaultInputs

_SECTION = "offload_param"
_DEFAULT_COUNT, _DEFAULT_SIZE = 5, 100_000_000
_MIB = 1 << 20


def choose_default(inputs: DefaultInputs) -> tuple[TunedDefault, ...]:
    """Both are page-locked host memory on every rank; too few or too small ones end the run
    (`partitioned_param_swapper.py`, the gates OF008 and OF009). `fast_init` reads whole sub-groups through them
    (OF012), and leaves their size alone.
    """
    zero, model, settings = inputs.run.spec.zero, inputs.model, inputs.settings
    parameters, optimizer = zero.offload_param, zero.offload_optimizer
    if inputs.stage != 3 or parameters is None or parameters.device != "nvme" or model is None or settings is None:
        return ()
    if settings.tensor_parallel_size > 1 or settings.pipeline_parallel_size > 1:
        return ()
    shares = [-(-parameter.numel // settings.zero_world_size) for parameter in model.parameters()]
    swapped_shares = [share for share in shares if share * settings.param_bytes >= _MIB]
    if not swapped_shares:
        return ()
    size = -(-max(swapped_shares) // _MIB) * _MIB
    count = (
        _DEFAULT_COUNT if sum(shares) <= settings.max_in_cpu else buffers_in_use(model, settings, len(swapped_shares))
    )
    values = (
        ("buffer_size", size, _DEFAULT_SIZE, f"the largest shard has {max(swapped_shares):,} elements"),
        ("buffer_count", count, _DEFAULT_COUNT, "each gathered or prefetched parameter holds one"),
    )
    return tuple(
        TunedDefault(f"parameter swap {key}", f"zero_optimization.{_SECTION}.{key}", value, default, reason)
        for key, value, default, reason in values
        if value != default and inputs.is_unset(f"{_SECTION}.{key}")
        if key != "buffer_size" or optimizer is None or not optimizer.fast_init
    )


def buffers_in_use(model: ModelFacts, settings: PlanSettings, num_swapped: int) -> int:
    """Parameters on disk that hold a buffer at once: all that fit into the reuse distance. Of a larger model a share by
    elements and one layer more, since that is an estimate.
    """
    total = model.num_parameters
    live = min(total, settings.max_reuse_distance // 2 + model.largest_module + settings.prefetch_bucket_size)
    estimate = -(-num_swapped * live // total)
    return estimate if live == total else min(num_swapped, estimate + len(model.largest_layer))
