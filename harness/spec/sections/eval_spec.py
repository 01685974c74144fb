# SPDX-License-Identifier: Apache-2.0
"""`eval`: the loss on held-out data, and early stopping."""

from typing import Annotated

from pydantic import Field

from harness.spec.sections.section import Positive, Section


class EvalSpec(Section):
    """Loss on the held-out part."""

    eval_steps: Positive | None = None
    """Evaluate every so many steps. Default: only at the end."""
    per_device_eval_batch_size: Positive | None = None
    """Default: the training micro-batch."""
    max_batches: Positive | None = None
    """Batches a rank at most, for a quick look. Default: the whole held-out part."""
    eval_on_start: bool = False
    """Evaluate before the first step too."""
    early_stopping_patience: Positive | None = None
    """End the run after so many evaluations in a row that were not better than the best. Default: never."""
    early_stopping_threshold: Annotated[float, Field(ge=0.0)] = 0.0
    """How much lower than the best a loss must be to count as better."""
