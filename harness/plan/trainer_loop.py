# SPDX-License-Identifier: Apache-2.0
"""The same settings in the loop of another trainer: what `harness launch` does and that loop does not.

Read in transformers 5 (`trainer.py`, `loss/loss_utils.py`, `integrations/deepspeed.py`) and accelerate 1 on
2026-11-28. LLaMA-Factory, axolotl and ms-swift train by the Trainer's loop. All of them compute the logits of a whole
micro-batch, in fp32, let `"auto"` be filled in by the hidden size, pad rows under a mask, and leave DeepSpeed alone.
DPO and KTO hold the reference model beside the trained one (TRL's trainers), unless it is the base of an adapter.
A fused loss (Liger kernels, cut cross-entropy) is an option of theirs that no run spec has: it is not planned.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import Capacity, Fit, MemoryEstimate, check_fit, estimate_memory
from harness.plan.settings.plan_settings import settings_of
from harness.plan.tuned_defaults.rules import with_trainer
from harness.run.resolved_run import ResolvedRun

TRAINERS = {
    "trainer": "the Trainer",
    "llama-factory": "LLaMA-Factory",
    "axolotl": "axolotl",
    "swift": "ms-swift",
    "accelerate": "an accelerate loop",
}
"""Names of `--as`, and in sentences."""


@dataclass(frozen=True, slots=True)
class LoopMemory:
    """The memory of a run in one loop. `trainer` is a key of `TRAINERS`; empty for `harness launch`."""

    trainer: str
    memory: MemoryEstimate
    fit: Fit

    @property
    def name(self) -> str:
        """As a sentence has it."""
        return TRAINERS.get(self.trainer, "`harness launch`")


def logits_bytes(memory: MemoryEstimate) -> int:
    """Bytes of vocabulary-sized tensors, the most at once."""
    return max((item.bytes for item in memory.items_of("gpu") if item.kind == "logits"), default=0)


def estimate_loop(
    run: ResolvedRun, trainer: str, model: ModelFacts, device: Device | None, capacity: Capacity
) -> LoopMemory | None:
    """Memory and fit of the run in the loop of this trainer; None where its ranks or its micro-batch are unknown."""
    settings = settings_of(with_trainer(run, trainer, model) if trainer else run)
    if settings is None:
        return None
    memory = estimate_memory(model, settings, device)
    return LoopMemory(trainer, memory, check_fit(memory, capacity))
