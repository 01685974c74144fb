"""Going on in another shape: other ranks, ZeRO stage, offload, number format, tensor or pipeline degree.

    describe.py   what of an engine decides how its shards are cut, and what of it has changed since a checkpoint
    convert.py    a checkpoint's shards into DeepSpeed's universal layout, a tensor at a time, each rank its part
    load.py       that layout into the engine

The layout is DeepSpeed's, but its converter is not used: `ds_to_universal` cannot read stage 0, writes for stages 1 and
2 what stage 3 cannot load and the other way round, knows Adam's states alone, loads whole shards into memory and
unpickles whatever they hold. The writer here reads any checkpoint through `shards/`. What of DeepSpeed's loading is
used, and what is not, `load.py` says.
"""

from harness.runtime.checkpoint.reshard.from_universal import load_universal
from harness.runtime.checkpoint.reshard.layout_signature import describe_layout, layout_changes
from harness.runtime.checkpoint.reshard.to_universal import convert_to_universal, remove_converted

__all__ = ["convert_to_universal", "describe_layout", "layout_changes", "load_universal", "remove_converted"]
