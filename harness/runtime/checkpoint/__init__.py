"""Checkpoints: DeepSpeed's shards, each rank's random states and a manifest, committed by one rename; and the way back.

A folder without a manifest, or with another name, is not a checkpoint. What needs no torch (manifests, verifying,
choosing, retention) is in `harness.checkpoints`; export is in `export.py`.
"""

from harness.checkpoints.manifest import NAME as MANIFEST
from harness.runtime.checkpoint.contents import HUGGING_FACE
from harness.runtime.checkpoint.restore import read_manifest, restore
from harness.runtime.checkpoint.saver import Outcome, Saver

__all__ = ["HUGGING_FACE", "MANIFEST", "Outcome", "Saver", "read_manifest", "restore"]
