"""Checkpoints: DeepSpeed's shards, each rank's random states and a manifest, committed by one rename; and the way back.

A folder without a manifest, or with another name, is not a checkpoint. What needs no torch (manifests, verifying,
choosing, retention) is in `harness.checkpoints`; export is in `export.py`.
"""

from harness.checkpoints.manifest import MANIFEST as MANIFEST
from harness.runtime.checkpoint.metadata import HUGGING_FACE
from harness.runtime.checkpoint.restore import read_checked_manifest, restore_checkpoint
from harness.runtime.checkpoint.saver import CheckpointSaver, SaveOutcome

__all__ = ["HUGGING_FACE", "MANIFEST", "CheckpointSaver", "SaveOutcome", "read_checked_manifest", "restore_checkpoint"]
