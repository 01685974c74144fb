"""Stage 3 with parameters on NVMe: as many swap buffers as are in use at once, each of the largest shard's size."""

from __future__ import annotations

from harness.facts.models import ModelFacts
from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts
from harness.plan.settings import Settings

_SECTION = "offload_param"
_COUNT, _SIZE = 5, 100_000_000
_MIB = 1 << 20


def choose(facts: Facts) -> tuple[Choice, ...]:
    """Both are locked host memory on every rank; too few or too small ones end the run
    (`partitioned_param_swapper.py`, the gates OF008 and OF009). `fast_init` reads whole sub-groups through them
    (OF012), so that their size is left alone.
    """
    zero, model, settings = facts.run.spec.zero, facts.model, facts.settings
    parameters, optimizer = zero.offload_param, zero.offload_optimizer
    if facts.stage != 3 or parameters is None or parameters.device != "nvme" or model is None or settings is None:
        return ()
    if settings.tensor > 1 or settings.pipeline > 1:
        return ()
    shares = [-(-parameter.numel // settings.shards) for parameter in model.parameters()]
    swapped = [share for share in shares if share * settings.param_bytes >= _MIB]
    if not swapped:
        return ()
    size = -(-max(swapped) // _MIB) * _MIB
    count = _COUNT if sum(shares) <= settings.max_in_cpu else in_use(model, settings, len(swapped))
    found = (
        ("buffer_size", size, _SIZE, f"the largest shard has {max(swapped):,} elements"),
        ("buffer_count", count, _COUNT, "each parameter that is gathered or on its way holds one"),
    )
    return tuple(
        Choice(f"parameter swap {key}", f"zero_optimization.{_SECTION}.{key}", value, default, reason)
        for key, value, default, reason in found
        if value != default and facts.silent(f"{_SECTION}.{key}")
        if key != "buffer_size" or optimizer is None or not optimizer.fast_init
    )


def in_use(model: ModelFacts, s: Settings, swapped: int) -> int:
    """Of so many parameters on disk, those that hold a buffer at once: all that fit into the reuse distance; of a
    larger model a share by elements, and a layer's worth more, since that is an estimate.
    """
    total = model.num_parameters
    live = min(total, s.reuse // 2 + model.largest_module + s.prefetch)
    estimate = -(-swapped * live // total)
    return estimate if live == total else min(swapped, estimate + len(model.layer))
