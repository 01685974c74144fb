# SPDX-License-Identifier: Apache-2.0
"""`eval`: the loss on held-out data, and early stopping."""

from typing import Annotated

from pydantic import Field

from harness.spec.sections.section import Positive, Section


class EvalSpec(Section):
    """Loss on the held-out part."""

    eval_steps: Positive | None = None
    """Evaluate every N steps. Default: only at the end."""
    per_device_eval_batch_size: Positive | None = None
    """Default: the training micro-batch."""
    max_batches: Positive | None = None
    """Batches per rank at most, for a faster evaluation. Default: the whole held-out part."""
    eval_on_start: bool = False
    """Evaluate before the first step too."""
    early_stopping_patience: Positive | None = None
    """End the run after N evaluations in a row that did not improve on the best. Default: never."""
    early_stopping_threshold: Annotated[float, Field(ge=0.0)] = 0.0
    """Smallest decrease of the best loss that counts as an improvement."""
