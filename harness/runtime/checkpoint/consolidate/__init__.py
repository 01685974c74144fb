# SPDX-License-Identifier: Apache-2.0
"""Whole tensors out of a sharded DeepSpeed checkpoint, one at a time, whatever its ZeRO stage and degrees.

    layouts.py       the files of a tag folder, and where each parameter lies in those of one tensor rank or stage
    full_weights.py  tensor ranks and stages joined, under the names of `transformers`; the universal layout, a file a
                     tensor

The files stay mapped: memory holds one requested tensor, not the model. Nothing is written here.
"""

from harness.runtime.checkpoint.consolidate.full_weights import (
    FullWeights,
    open_checkpoint,
    open_universal,
    open_weights,
    rename_weights,
)
from harness.runtime.checkpoint.consolidate.layouts import WEIGHT

__all__ = ["WEIGHT", "FullWeights", "open_checkpoint", "open_universal", "open_weights", "rename_weights"]
