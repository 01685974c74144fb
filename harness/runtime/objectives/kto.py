# SPDX-License-Identifier: Apache-2.0
"""Kahneman-Tversky optimization (Ethayarajh et al. 2024), over answers that are labelled desirable or not."""

from __future__ import annotations

from typing import ClassVar, cast

import deepspeed.comm as dist
import torch

from harness.runtime.dataset.preference_dataset import PreferenceBatch
from harness.runtime.engine_protocol import Engine
from harness.runtime.micro_batch import copy_to_device
from harness.runtime.objectives.preference import Preference
from harness.runtime.objectives.preference_losses import kto_losses


class Kto(Preference):
    """The objective `kto`. Its unit is an answer.

    The KL term is estimated over the micro-batches of all ranks, from prompts with the answers of other rows, as in
    TRL 1.16; it has no gradient.
    """

    name: ClassVar[str] = "kto"
    num_columns: ClassVar[int] = 2
    step_metrics = (
        "kl",
        "desirable",
        "rewards_desirable",
        "logps_desirable",
        "rewards_undesirable",
        "logps_undesirable",
    )

    def reference_columns(self, engine: Engine, batch: PreferenceBatch) -> list[torch.Tensor]:
        """The log-probabilities of the answers, and of other rows' answers to the same prompts (0 without KL term)."""
        answers = self.log_probs(engine, batch)[0]
        return [answers, torch.zeros_like(answers) if batch.kl is None else self.log_probs(engine, batch.kl)[0]]

    def unit_losses(self, engine: Engine, batch: PreferenceBatch) -> torch.Tensor:
        """The loss of each answer. A collective, where there is a KL term."""
        spec, reference = self.run.spec.kto, self._reference(batch)
        kl = self._estimate_kl(engine, batch, reference[:, 1])
        log_probs, _ = self.log_probs(engine, batch)
        is_desirable = copy_to_device(cast("torch.Tensor", batch.is_chosen), self._device)
        ratios = log_probs - reference[:, 0]
        rewards = spec.beta * ratios
        used, desirable = self._used(batch), is_desirable.float()
        self.add_metrics({"kl": kl.expand_as(rewards), "desirable": desirable}, used)
        self.add_metrics({"rewards_desirable": rewards, "logps_desirable": log_probs}, used * desirable)
        self.add_metrics({"rewards_undesirable": rewards, "logps_undesirable": log_probs}, used * (1 - desirable))
        weights = spec.desirable_weight, spec.undesirable_weight
        return kto_losses(spec.loss_type, ratios, is_desirable, kl, spec.beta, *weights)

    def _estimate_kl(self, engine: Engine, batch: PreferenceBatch, reference: torch.Tensor) -> torch.Tensor:
        """The mean over the rows of all ranks that are used, not below 0. A collective."""
        if batch.kl is None:
            return torch.zeros((), device=self._device)
        with torch.no_grad():
            log_probs, _ = self.log_probs(engine, batch.kl)
        used = self._used(batch)
        sums = torch.stack([((log_probs - reference) * used).sum(), used.sum()])
        if self._distributed.world_size > 1:
            dist.all_reduce(sums)
        return (sums[0] / sums[1].clamp(min=1)).clamp(min=0)
