# SPDX-License-Identifier: Apache-2.0
"""Direct preference optimization (Rafailov et al. 2023) and its relatives, over pairs of answers."""

from __future__ import annotations

from typing import ClassVar

import torch

from harness.runtime.dataset.preference_dataset import PreferenceBatch
from harness.runtime.engine_protocol import Engine
from harness.runtime.objectives.preference import Preference
from harness.runtime.objectives.preference_losses import DPO_LOSSES, PairRatios, answer_losses


class Dpo(Preference):
    """The objective `dpo`. Its unit is a pair."""

    name: ClassVar[str] = "dpo"
    num_columns: ClassVar[int] = 2
    step_metrics = (
        "rewards_chosen",
        "rewards_rejected",
        "rewards_margin",
        "rewards_accuracy",
        "logps_chosen",
        "logps_rejected",
    )

    def reference_columns(self, engine: Engine, batch: PreferenceBatch) -> list[torch.Tensor]:
        """The log-probabilities of the chosen and of the rejected answers."""
        return list(self.log_probs(engine, batch)[0].chunk(2))

    def unit_losses(self, engine: Engine, batch: PreferenceBatch) -> torch.Tensor:
        """The loss of each pair."""
        spec = self.run.spec.dpo
        log_probs, tokens = self.log_probs(engine, batch)
        reference = self._reference(batch)
        (chosen, rejected), (num_chosen, num_rejected) = log_probs.chunk(2), tokens.chunk(2)
        ratios = PairRatios(chosen - reference[:, 0], rejected - reference[:, 1], num_chosen, num_rejected)
        losses = DPO_LOSSES[spec.loss_type](ratios, spec.beta, spec.label_smoothing)
        if spec.rpo_alpha is not None:
            losses = losses + spec.rpo_alpha * answer_losses(chosen, num_chosen)
        rewards = spec.beta * ratios.chosen, spec.beta * ratios.rejected
        self.add_metrics(
            {
                "rewards_chosen": rewards[0],
                "rewards_rejected": rewards[1],
                "rewards_margin": rewards[0] - rewards[1],
                "rewards_accuracy": (rewards[0] > rewards[1]).float(),
                "logps_chosen": chosen,
                "logps_rejected": rejected,
            },
            self._used(batch),
        )
        return losses
