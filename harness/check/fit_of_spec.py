# SPDX-License-Identifier: Apache-2.0
"""The table of ways of training (`fit_table`) for the run of a spec, with the keys of the spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check.fit_table import FitSearch
from harness.errors import UserError
from harness.facts.devices import find_device
from harness.plan.search.plan_request import PlanRequest
from harness.run.objective_facts import facts_of
from harness.run.resolved_run import ResolvedRun

_OF_THE_TABLE = {
    "cluster": ("num_nodes", "gpus_per_node"),
    "data": ("max_length",),
    "model": ("lora", "quantization"),
    "train": ("per_device_train_batch_size", "global_batch_size", "gradient_accumulation_steps"),
}
"""Keys of a spec whose values are those of a cell; `zero`, `parallel` and `launch` are so as a whole."""


def search_of_run(run: ResolvedRun, tokens: float | None, price: float | None, trainer: str) -> FitSearch | None:
    """The search for a run of a spec; None where its model, its GPUs or its batch have no name or no number."""
    spec, batch, world = run.spec, run.batch.global_batch, run.parallel_dims.world_size
    device = find_device(spec.cluster.gpu or "")
    if not spec.model.name_or_path or not facts_of(spec.objective).loads_model:
        return None
    if device is None or device.is_cpu or not batch or not world:
        return None
    raw = spec.model_dump(mode="json", exclude_unset=True)
    sections: dict[str, Any] = {
        section: {key: value for key, value in values.items() if key not in _OF_THE_TABLE.get(section, ())}
        if isinstance(values, Mapping)
        else values
        for section, values in raw.items()
        if section not in ("name", "zero", "parallel", "launch", "plugins")
    }
    length = spec.data.max_length
    request = PlanRequest(
        spec.model.name_or_path,
        world,
        spec.cluster.gpu or "",
        spec.cluster.gpus_per_node,
        None if spec.cluster.host_memory is None else str(spec.cluster.host_memory),
        None if spec.cluster.nvme is None else str(spec.cluster.nvme),
        max_length=length,
        tokens_per_step=batch * length,
    )
    try:
        return FitSearch(request, tokens or 1e9, price, sections, trainer)
    except UserError:
        return None
