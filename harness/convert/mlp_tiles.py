# SPDX-License-Identifier: Apache-2.0
"""An MLP in tiles of tokens (ALST), as ms-swift, axolotl and ArcticTraining name it: `train.mlp_tile_size`."""

from __future__ import annotations

from harness.convert.trainer_file import TrainerFile, is_on
from harness.facts.model_lookup import find_model


def convert_mlp_tiles(file: TrainerFile, switch: str, shards: str = "") -> None:
    """Tokens of a tile: those of the micro-batch by the number of shards; without one, the hidden size, as they do."""
    if not is_on(file.values.get(switch)):
        file.take_value(switch, shards)
        return
    count, length = file.values.get(shards), file.draft.get("data.max_length")
    micro = file.draft.get("train.per_device_train_batch_size") or 1
    size = None
    if isinstance(count, int) and isinstance(length, int) and isinstance(micro, int) and count > 0:
        size = -(-length * micro // count)
    elif count is None:
        name = file.draft.get("model.name_or_path")
        facts = find_model(name, None, None, None, build=False).facts if isinstance(name, str) else None
        size = facts.hidden if facts else None
    if size is None:
        file.add_manual(switch, "set `train.mlp_tile_size`, the tokens of a tile; theirs is the model's hidden size")
    else:
        file.put("train.mlp_tile_size", size)
    file.take_value(switch, shards)
