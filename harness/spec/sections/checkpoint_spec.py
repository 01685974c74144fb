# SPDX-License-Identifier: Apache-2.0
"""`checkpoint`: when the training state is saved, and how much of it is kept."""

from typing import Literal

from harness.spec.sections.section import Positive, Section


class CheckpointSpec(Section):
    """When the training state is saved, and how much of it is kept."""

    save_steps: Positive | None = None
    """Save every so many steps. Default: only at the end."""
    save_total_limit: Positive | None = None
    """Keep the newest so many. Default: all."""
    keep_every_steps: Positive | None = None
    """Beyond the newest, keep those of every so many steps."""
    keep_best: bool = False
    """Beyond the newest, keep the one with the lowest held-out loss among those that were evaluated."""
    save_at_end: bool = True
    """Save after the last step, and when the run is asked to stop."""
    async_save: bool = False
    """Copy the state to host memory and write it while training goes on; needs that much host memory more. With states
    on NVMe, or too little memory, training waits for the write as without it."""
    on_save_error: Literal["stop", "continue"] = "stop"
    """What follows a save that failed (disk full, storage gone) before the last step: end the run, or train on. Earlier
    checkpoints are kept either way."""
    verify: Literal["full", "sizes"] = "full"
    """What a resume looks at before it loads: every byte against its sha256, or names and sizes alone."""
