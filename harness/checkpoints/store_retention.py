# SPDX-License-Identifier: Apache-2.0
"""Retention in an object store, by the same rule as on the disk: `harness.checkpoints.retention.select_outdated`."""

from __future__ import annotations

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.retention import select_outdated
from harness.checkpoints.stored_run import StoredRun
from harness.spec.sections.checkpoint_spec import CheckpointSpec


def prune_store(stored: StoredRun, spec: CheckpointSpec, evaluations: Evaluations, newest: int) -> list[int]:
    """Remove the outdated checkpoints up to step `newest`, and leftovers of killed uploads; returns their steps.

    Only what a run of this prefix wrote, by the manifest that is read back from the store, counts and goes. What the
    owner has abandoned by a resume from an older one does not count among the newest. Raises
    StoreError, and PrefixInUseError where another run has taken the prefix.
    """
    removed = stored.remove_leftovers(except_steps=(newest,))
    if spec.save_total_limit is None:
        return removed
    manifests = {manifest.step: manifest for manifest in stored.own_manifests() if manifest.step <= newest}
    owner = stored.check_owner()
    abandoned = {s for s, one in manifests.items() if owner.is_in_lineage(str(one.get("run_id")), s) is False}
    best = evaluations.best_step(manifests) if spec.keep_best else None
    others = manifests.keys() - sorted(manifests.keys() - abandoned)[-spec.save_total_limit :]
    outdated = select_outdated([*others, newest], keep_last=1, keep_every=spec.keep_every_steps, best=best)
    for step in outdated:
        stored.remove(manifests[step])
    return [*removed, *outdated]
