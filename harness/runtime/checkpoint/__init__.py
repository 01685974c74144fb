# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: DeepSpeed's shards, each rank's random states and a manifest, committed by one rename.

    saver.py             save: the engine's files and metadata of one step, in line or in a background thread
      commit.py          writes the files, agrees with all ranks, renames the folder, removes outdated checkpoints
      snapshot.py        the copy in host memory that a background thread writes from
      hashing_writer.py  files hashed while they are written; disk_space.py checks the folder first
    restore.py           restore: verify, compare, load, random states, the train state
    metadata.py          the manifest's fields and the small Hugging Face files; rng_state.py the random states
    consolidate/         whole tensors out of the shards of any ZeRO stage and any degrees
    reshard/             a checkpoint into another layout: other ranks, ZeRO stage, offload, dtype or degrees
    foreign/             checkpoints of other programs into a run, and back
    deepspeed_io.py      DeepSpeed's own reading and writing of shards; nvme_states.py the states on NVMe
    safe_load.py         torch files read without running code from them

A folder without a manifest, or with another name, is no checkpoint. Manifests, verification, the newest checkpoint and
retention need no torch and are in `harness.checkpoints`. `harness.runtime.export` writes Hugging Face folders.
"""

from harness.checkpoints.manifest import MANIFEST as MANIFEST
from harness.runtime.checkpoint.metadata import HUGGING_FACE
from harness.runtime.checkpoint.restore import read_checked_manifest, restore_checkpoint
from harness.runtime.checkpoint.saver import CheckpointSaver, SaveOutcome

__all__ = ["HUGGING_FACE", "MANIFEST", "CheckpointSaver", "SaveOutcome", "read_checked_manifest", "restore_checkpoint"]
