"""Whole tensors out of a sharded DeepSpeed checkpoint, one at a time, whatever its ZeRO stage and degrees.

    file_io.py    the files by rank, memory-mapped, no code run from them
    layouts.py  where each parameter lies in the files of one tensor rank or stage
    whole.py    the parts of tensor ranks and stages put together, under the names of `transformers`

The files stay mapped: memory holds the tensor that was asked for and not the model. Nothing is written here.
"""

from harness.runtime.checkpoint.consolidate.full_weights import FullWeights, open_checkpoint, open_weights
from harness.runtime.checkpoint.consolidate.layouts import WEIGHT

__all__ = ["WEIGHT", "FullWeights", "open_checkpoint", "open_weights"]
