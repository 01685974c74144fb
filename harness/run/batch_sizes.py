# SPDX-License-Identifier: Apache-2.0
"""Micro-batch, gradient accumulation and global batch: the missing one of the three from the other two."""

from __future__ import annotations

from typing import NamedTuple


class BatchSizes(NamedTuple):
    """global_batch = micro_batch x data-parallel ranks x accumulation, in sequences. None: neither in the spec nor
    derivable.
    """

    micro_batch: int | None
    accumulation: int | None
    global_batch: int | None

    @property
    def is_complete(self) -> bool:
        """Are all three known?"""
        return None not in (self.micro_batch, self.accumulation, self.global_batch)


def resolve_batch_sizes(
    per_device: int | None, accumulation: int | None, global_batch: int | None, data: int | None
) -> BatchSizes:
    """Fill in the missing size where it is a whole number; never change a size of the spec.

    Only a micro-batch: accumulation is 1. Only a global batch: accumulation is 1, as in DeepSpeed.
    """
    if per_device is None and global_batch is None:
        return BatchSizes(None, accumulation, None)
    if global_batch is None:
        accumulation = accumulation or 1
        return BatchSizes(per_device, accumulation, None if data is None else (per_device or 1) * data * accumulation)
    if data is None:
        return BatchSizes(per_device, accumulation, global_batch)
    if per_device is None:
        accumulation = accumulation or 1
        whole = global_batch % (data * accumulation) == 0
        return BatchSizes(global_batch // (data * accumulation) if whole else None, accumulation, global_batch)
    if accumulation is None and global_batch % (per_device * data) == 0:
        return BatchSizes(per_device, global_batch // (per_device * data), global_batch)
    return BatchSizes(per_device, accumulation, global_batch)


def keep_global_batch(batch: BatchSizes, data: int | None, global_batch: int) -> BatchSizes | None:
    """The sizes that make `global_batch` by other accumulation steps; None where no whole number of steps does."""
    if batch.micro_batch is None or data is None or global_batch % (batch.micro_batch * data):
        return None
    return BatchSizes(batch.micro_batch, global_batch // (batch.micro_batch * data), global_batch)
