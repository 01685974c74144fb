# SPDX-License-Identifier: Apache-2.0
"""The kind of job that makes a failure likely: one process without a launcher, images in some batches only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.diagnosis.diagnosis_types import LogEvent
from harness.diagnosis.reader.log_reader import LogReader
from harness.diagnosis.reader.log_scanner import LogScanner

_PARTITIONED_CAUSES = ("LG083", "LG102", "LG209", "LG293")
_DISAGREEMENT_CAUSES = ("LG070", "LG071", "LG101", "LG105", "LG212", "LG240", "LG241")
_IMAGE_WORDS = re.compile(
    rb"pixel_values|image_grid_thw|vision_tower|image_processor|ImageProcessor|\bvisual\b|vision_model|image_embeds"
)
_LAUNCHER_WORDS = re.compile(rb"launch\.py|torchrun|torch/distributed/(?:run|elastic|launcher)|Setting ds_accel.*LOCAL")


def describe_job(first: LogEvent, scanner: LogScanner, readers: Sequence[LogReader]) -> Iterator[str]:
    """Notes on the first failure."""
    text = b"".join(reader.head + reader.tail for reader in readers)
    is_alone = not scanner.ranks and scanner.world_size <= 1
    if first.cause in _PARTITIONED_CAUSES and is_alone and not _LAUNCHER_WORDS.search(text):
        yield (
            "no line shows a launcher or a second rank: a script that was started as `python SCRIPT` has no engine, "
            "and ZeRO-3 leaves its parameters partitioned; start it with `deepspeed`, `torchrun` or `accelerate launch`"
        )
    if first.cause in _DISAGREEMENT_CAUSES and _IMAGE_WORDS.search(text):
        yield (
            "the job has images: a rank whose batch has none skips the vision layers, in whose collectives the others "
            "wait; give every batch an image (a small empty one counts), or freeze these layers under ZeRO-2"
        )
