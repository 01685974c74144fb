# SPDX-License-Identifier: Apache-2.0
"""Resume in another layout: other ranks, ZeRO stage, offload, dtype, tensor or pipeline degree.

    layout_signature.py  the layout of an engine's shards, and its changes since a checkpoint
    to_universal.py      a checkpoint's shards into DeepSpeed's universal layout, tensor by tensor, each rank its share
    from_universal.py    that layout into the engine

The layout is DeepSpeed's, but its converter is not used: `ds_to_universal` cannot read stage 0, writes for stages 1 and
2 files that stage 3 cannot load and the other way round, knows Adam's states alone, loads whole shards into memory and
unpickles whatever they hold. The writer here reads any checkpoint through `consolidate/`. `from_universal.py` lists the
functions of DeepSpeed's loading that it uses.
"""

from harness.runtime.checkpoint.reshard.from_universal import load_universal
from harness.runtime.checkpoint.reshard.layout_signature import describe_layout, layout_changes
from harness.runtime.checkpoint.reshard.to_universal import convert_to_universal, remove_converted

__all__ = ["convert_to_universal", "describe_layout", "layout_changes", "load_universal", "remove_converted"]
