# SPDX-License-Identifier: Apache-2.0
"""The model states of a module of the user's own, from its parameters: what ZeRO shards and offloads of it; its rows.

Activations are not among them: nothing says how much a loss of the user's own keeps.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace
from typing import Any

from harness.facts.model_facts import ModelFacts
from harness.facts.model_parts import Parameter
from harness.findings import Finding, Fix
from harness.hostinfo.module_probe import OwnModule
from harness.plan.memory.memory_estimate import STATE_KINDS
from harness.plan.memory.memory_items import MemoryItem, keep_largest_moments
from harness.plan.memory.model_states import model_state_items
from harness.plan.memory.zero_partitions import partition_model
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.weights.trainable_split import TrainableChoice, split_parameters
from harness.run.resolved_run import ResolvedRun

_TIERS = ("gpu", "host", "nvme")


@dataclass(frozen=True, slots=True)
class OwnStates:
    """Parameters in elements; `items` of a rank; `num_rows` for training, where they could be counted."""

    num_parameters: int
    num_trainable: int
    items: tuple[MemoryItem, ...]
    ranks_per_host: int
    num_rows: int | None = None

    def bytes_of(self, tier: str, *, buffers: bool = False) -> int:
        """A rank's bytes in `gpu`, `host` or `nvme`: the larger of those in the backward pass and in the step. With
        `buffers` those of DeepSpeed's buckets alone.
        """
        items = [item for item in self.items if item.tier == tier and (item.kind in STATE_KINDS) != buffers]
        return max(sum(item.bytes for item in items if phase in item.phases) for phase in ("backward", "step"))

    def to_json(self) -> dict[str, Any]:
        """Bytes a rank, by tier and by kind."""
        return {
            "parameters": self.num_parameters,
            "trainable_parameters": self.num_trainable,
            "state_bytes_per_rank": {tier: self.bytes_of(tier) for tier in _TIERS},
            "buffer_bytes_per_rank": {tier: self.bytes_of(tier, buffers=True) for tier in _TIERS},
            "activations": None,
            "training_rows": self.num_rows,
        }


def count_own_states(own: OwnModule, settings: PlanSettings) -> OwnStates:
    """The states of its parameters. What the module itself freezes is frozen, beside the choice of the spec."""
    parameters = own.parameters
    before = tuple(Parameter(each.name, each.shape) for each in parameters)
    model = ModelFacts(
        family="own",
        hidden=0,
        heads=0,
        kv_heads=0,
        head_dim=0,
        intermediate=0,
        vocab=0,
        tied=False,
        experts=0,
        experts_per_token=0,
        layer_path="",
        before=before,
        layers=(),
        after=(),
    )
    frozen = [each.name for each in parameters if not each.is_trained]
    if frozen:
        frozen += [each.name for each in split_parameters(model, settings.trainable).frozen]
        settings = replace(settings, trainable=TrainableChoice(freeze=tuple(map(glob.escape, frozen))))
    partitions = partition_model(model, settings)
    items = tuple(keep_largest_moments(model_state_items(settings, partitions)))
    return OwnStates(model.num_parameters, partitions.total, items, settings.ranks_per_host, own.num_rows)


def own_module_findings(own: OwnModule | str, run: ResolvedRun) -> list[Finding]:
    """What a plan does not know of such a run, and too few rows. `own`: the module, or why it is not known."""
    is_script, step = run.spec.plugins.script is not None, run.batch.global_batch or 0
    measure = "launch a few steps: the summary and the report have the memory that a rank took"
    if not isinstance(own, str):
        message = "activations and the time of a step are not known: the module and the loss are your own"
        findings = [Finding("MM001", "info", message, "plugins.file", fix=Fix(measure))]
        if own.num_rows is not None and own.num_rows < step:
            message = f"a step needs {step:,} rows, and the training data has {own.num_rows:,} of them"
            fix = Fix("add data, or set a smaller batch: fewer rows, accumulation steps or ranks")
            findings.append(Finding("MD115", "error", message, "train", fix=fix))
        return findings
    message = own or "the file of `plugins.file` builds it, and running it was not allowed"
    fix = Fix(measure if own else "add `--allow-local-code`: parameters and rows are counted, in a process of its own")
    if is_script:
        message, fix = "the script builds it when it runs", Fix(measure)
    key, notes = f"plugins.{'script' if is_script else 'file'}", ("memory and time are not planned",)
    return [Finding("MM001", "info", f"the model's size is not known: {message}", key, notes=notes, fix=fix)]
