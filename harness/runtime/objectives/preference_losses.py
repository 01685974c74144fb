# SPDX-License-Identifier: Apache-2.0
"""The losses of DPO and KTO as functions of log-probabilities, under the names of TRL 1.16.

Arguments and results are fp32 tensors with one entry for each pair, or for each answer. `tests/support/training/
trl_figures.json` has what TRL itself computes; `benchmarks/trl_figures.py` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid


@dataclass(frozen=True, slots=True)
class PairRatios:
    """log(policy / reference) of the chosen and of the rejected answers, summed over their tokens; and these tokens."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_tokens: torch.Tensor
    rejected_tokens: torch.Tensor

    @property
    def difference(self) -> torch.Tensor:
        """Of the sums."""
        return self.chosen - self.rejected

    @property
    def mean_difference(self) -> torch.Tensor:
        """Of the means over tokens."""
        return self.chosen / self.chosen_tokens.clamp(min=1) - self.rejected / self.rejected_tokens.clamp(min=1)


def _sigmoid(ratios: PairRatios, beta: float, smoothing: float) -> torch.Tensor:
    """Rafailov et al. 2023; with smoothing the conservative form, of labels that are flipped with this probability."""
    logits = beta * ratios.difference
    if not smoothing:
        return -logsigmoid(logits)
    return -(1 - smoothing) * logsigmoid(logits) - smoothing * logsigmoid(-logits)


def _sigmoid_norm(ratios: PairRatios, beta: float, _smoothing: float) -> torch.Tensor:
    """The same over mean log-probabilities, so that long answers have no advantage."""
    return -logsigmoid(beta * ratios.mean_difference)


def _hinge(ratios: PairRatios, beta: float, _smoothing: float) -> torch.Tensor:
    """SLiC, Zhao et al. 2023."""
    return torch.relu(1 - beta * ratios.difference)


def _ipo(ratios: PairRatios, beta: float, _smoothing: float) -> torch.Tensor:
    """Azar et al. 2023, equation 17, over mean log-probabilities; beta is tau there."""
    return (ratios.mean_difference - 1 / (2 * beta)) ** 2


def _robust(ratios: PairRatios, beta: float, smoothing: float) -> torch.Tensor:
    """Chowdhury et al. 2024: unbiased where labels are flipped with the probability `smoothing`, below 0.5."""
    difference = ratios.difference  # multiplied twice, so that the sum of its gradients is rounded as TRL's
    clean, flipped = -(1 - smoothing) * logsigmoid(beta * difference), -smoothing * logsigmoid(-beta * difference)
    return (clean - flipped) / (1 - 2 * smoothing)


def _exo_pair(ratios: PairRatios, beta: float, smoothing: float) -> torch.Tensor:
    """Ji et al. 2024, equation 16; `smoothing` is epsilon there, above 0."""
    difference = ratios.difference
    epsilon = torch.tensor(smoothing, device=difference.device)
    chosen = torch.sigmoid(beta * difference) * (logsigmoid(beta * difference) - torch.log1p(-epsilon))
    return chosen + torch.sigmoid(-beta * difference) * (logsigmoid(-beta * difference) - torch.log(epsilon))


def _nca_pair(ratios: PairRatios, beta: float, _smoothing: float) -> torch.Tensor:
    """Chen et al. 2024, for pairs."""
    chosen, rejected = beta * ratios.chosen, beta * ratios.rejected
    return -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)


def _apo_zero(ratios: PairRatios, beta: float, _smoothing: float) -> torch.Tensor:
    """D'Oosterlinck et al. 2024, equation 7: for chosen answers that are better than the model's own."""
    return 1 - torch.sigmoid(beta * ratios.chosen) + torch.sigmoid(beta * ratios.rejected)


def _apo_down(ratios: PairRatios, beta: float, _smoothing: float) -> torch.Tensor:
    """The same, equation 8: for chosen answers that are worse."""
    return torch.sigmoid(beta * ratios.chosen) + (1 - torch.sigmoid(beta * ratios.difference))


DPO_LOSSES: dict[str, Callable[[PairRatios, float, float], torch.Tensor]] = {
    "sigmoid": _sigmoid,
    "sigmoid_norm": _sigmoid_norm,
    "hinge": _hinge,
    "ipo": _ipo,
    "robust": _robust,
    "exo_pair": _exo_pair,
    "nca_pair": _nca_pair,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
}
"""Name -> the loss of each pair, from (ratios, beta, label smoothing)."""


def answer_losses(log_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The mean loss of the tokens of each answer: what `rpo_alpha` weighs (Pang et al. 2024)."""
    return -log_probs / tokens.clamp(min=1)


def kto_losses(
    loss_type: str,
    ratios: torch.Tensor,
    is_desirable: torch.Tensor,
    kl: torch.Tensor,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> torch.Tensor:
    """The loss of each answer; `ratios` as in `PairRatios`, `kl` a scalar without gradient, not below 0.

    `kto` is Ethayarajh et al. 2024, equation 7; `apo_zero_unpaired` has no KL term.
    """
    kl = torch.zeros_like(kl) if loss_type == "apo_zero_unpaired" else kl
    signed = torch.where(is_desirable, ratios - kl, kl - ratios)
    weights = torch.where(is_desirable, desirable_weight, undesirable_weight)
    return weights * (1 - torch.sigmoid(beta * signed))
