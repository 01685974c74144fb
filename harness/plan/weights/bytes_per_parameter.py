# SPDX-License-Identifier: Apache-2.0
"""Bytes a parameter of the model states, and what a ZeRO stage leaves of them on each rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BytesPerParameter:
    """Bytes a parameter of the model states, by kind, however many ranks share each of them."""

    parameters: int
    gradients: int
    master: int
    states: int

    @property
    def total(self) -> int:
        """All of them: 16 with 16-bit weights, fp32 masters and Adam."""
        return self.parameters + self.gradients + self.master + self.states

    def per_rank(self, parameters: float, ranks: int, stage: int) -> float:
        """Bytes a rank of the states alone, as in table 1 of the ZeRO paper (arXiv 1910.02054): what a stage shards is
        divided by the ranks. No buffers and no padding.
        """
        unsharded = {0: self.total, 1: self.parameters + self.gradients, 2: self.parameters, 3: 0}[stage]
        return parameters * (unsharded + (self.total - unsharded) / ranks)

    def __str__(self) -> str:
        parts = (self.parameters, "parameters"), (self.gradients, "gradients"), (self.master, "master weights")
        terms = " + ".join(f"{width} {name}" for width, name in (*parts, (self.states, "optimizer states")) if width)
        return f"{terms} = {self.total} bytes per parameter"
