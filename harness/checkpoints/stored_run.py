# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of one run in an object store, below a prefix of their own, and how many of them stay.

    PREFIX/run.json                      the run that writes here, those before it, where each resumed, complete steps
    PREFIX/step-00000100/files.json      written first: the manifest of what is being uploaded
                         .../            the files of the checkpoint
                         manifest.json   written last and read back: with it the checkpoint is there, without it not

A run that resumes from an older checkpoint abandons the newer ones: they are of its prefix, and not of its lineage.

Every key that is removed is listed in a manifest or a `files.json` that a run of this prefix wrote, and that is read
back first. No key is removed because of its name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import checkpoint_name, step_in_name
from harness.checkpoints.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest, parse_manifest
from harness.checkpoints.retention import select_outdated
from harness.errors import UserError
from harness.file_io import parse_json
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.spec.sections.checkpoint_spec import CheckpointSpec

OWNER = "run.json"
INTENT = "files.json"
FORMAT_VERSION = 1
_MAX_OWNER_BYTES = 2**24
_READS = 2
"""Reads of a manifest that comes with other bytes."""


RunStep = tuple[str, int]
"""The id of a run, and a step of it."""


class PrefixInUseError(Exception):
    """Another run writes below the prefix, or something else is there. The message is its id, or what is there."""


@dataclass(frozen=True)
class StoreOwner:
    """The content of `run.json`. `runs` are the ids of this run and of those that it resumed, the newest last."""

    run_id: str
    name: str
    runs: tuple[str, ...]
    steps: tuple[int, ...] = ()
    """The complete checkpoints: a listing may lag behind."""
    origins: Mapping[str, RunStep] = field(default_factory=dict)
    """The checkpoint from which a run resumed, by the id of the run; none of the first, nor of older releases' runs."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        body = {"format_version": FORMAT_VERSION, "run_id": self.run_id, "name": self.name, "runs": list(self.runs)}
        origins = {run: {"run_id": origin, "step": step} for run, (origin, step) in self.origins.items()}
        return {**body, "steps": list(self.steps), "origins": origins, "updated_at": time.time()}

    @staticmethod
    def from_json(body: Any) -> StoreOwner:
        """Raises ValueError, KeyError, TypeError or AttributeError for what `to_json` does not write."""
        origins = {run: (origin["run_id"], origin["step"]) for run, origin in body.get("origins", {}).items()}
        owner = StoreOwner(body["run_id"], body["name"], tuple(body["runs"]), tuple(body["steps"]), origins)
        texts = (owner.run_id, owner.name, *owner.runs, *(run for run, _ in origins.values()))
        if not all(isinstance(text, str) for text in texts):
            raise TypeError
        if not all(type(step) is int for step in (*owner.steps, *(step for _, step in origins.values()))):
            raise TypeError
        return owner

    def is_in_lineage(self, run_id: str, step: int) -> bool | None:
        """Did this run come from the checkpoint of that run and step, or write it? None where that is not known."""
        run, limit = self.run_id, step
        for _ in self.runs:
            if run == run_id:
                return step <= limit
            if run not in self.origins:
                return False if run == self.runs[0] else None
            run, resumed = self.origins[run]
            limit = min(limit, resumed)
        return None


@dataclass
class StoredRun:
    """One prefix of a store, as the run `owner` writes it; without an owner it is only read."""

    store: ObjectStore
    owner: StoreOwner | None = None

    def read_owner(self) -> StoreOwner | None:
        """The run that writes here; None where none does. Raises StoreError, also where two reads are no `run.json`."""
        try:
            return self._parse_owner(self.store.read(OWNER, _MAX_OWNER_BYTES))
        except StoreError as error:
            if error.kind == "missing":
                return None
            if error.kind != "damaged":
                raise
        try:
            return self._parse_owner(self.store.read(OWNER, _MAX_OWNER_BYTES))
        except StoreError as error:
            if error.kind == "damaged":
                raise StoreError("other", detail=str(error)) from None
            raise

    @staticmethod
    def _parse_owner(content: bytes) -> StoreOwner:
        try:
            return StoreOwner.from_json(parse_json(content.decode()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StoreError("damaged", detail=f"`{OWNER}` there is not the harness's") from None

    def claim(self, run_id: str, name: str, resumed: Collection[str], came_from: Sequence[RunStep] = ()) -> None:
        """Make this run the owner of the prefix. `resumed` are ids of runs that it continues: one of these may own it.
        `came_from` are the checkpoints from which it resumed, the nearest first.

        Raises StoreError; PrefixInUseError where another run owns it, or keys are there that no run owns.
        """
        old = self.read_owner()
        if old is None:
            foreign = self.store.find_entry()
            if foreign is not None:
                raise PrefixInUseError(f"`{foreign}` already exists")
            old = StoreOwner(run_id, name, tuple(sorted({*resumed} - {run_id})))
        elif old.run_id != run_id and old.run_id not in resumed:
            raise PrefixInUseError(f"the run `{old.run_id}` writes there")
        origins = dict(old.origins)
        nearest = next((origin for origin in came_from if origin[0] in old.runs), None)
        if nearest is not None and run_id not in old.runs:  # else it is a later attempt of that run
            origins[run_id] = nearest
        others = [*old.runs, *(one for one in sorted(resumed) if one not in old.runs)]
        runs = (*(one for one in others if one != run_id), run_id)
        self._write_owner(StoreOwner(run_id, name, runs, old.steps, origins))

    def check_owner(self) -> StoreOwner:
        """The owner as the store has it now. Raises PrefixInUseError where another run has taken the prefix."""
        current = self.read_owner()
        if current is None or self.owner is None or current.run_id != self.owner.run_id:
            other = "nobody" if current is None else f"the run `{current.run_id}`"
            raise PrefixInUseError(f"{other} owns it now")
        return current

    def begin_upload(self, step: int, manifest: bytes) -> None:
        """Say which files will be uploaded for this step. What an own run has there is no checkpoint from now on."""
        owner, folder = self.check_owner(), checkpoint_name(step)
        try:
            earlier = self.read_manifest(step)[0].get("run_id")
        except StoreError as error:
            if error.kind != "missing":
                raise
        else:
            if earlier not in owner.runs:
                raise PrefixInUseError(f"`{folder}` is of the run `{earlier}`")
            self.store.remove([f"{folder}/{MANIFEST}"])
        self.store.write(f"{folder}/{INTENT}", manifest)

    def has_begun(self, step: int, manifest: bytes) -> bool:
        """Is the last upload of this step of the same manifest?"""
        try:
            return self.store.read(f"{checkpoint_name(step)}/{INTENT}", MAX_MANIFEST_BYTES) == manifest
        except StoreError as error:
            if error.kind != "missing":
                raise
            return False

    def publish(self, step: int, manifest: bytes) -> None:
        """Write the manifest, read it back, and count the step as complete."""
        owner, name = self.check_owner(), f"{checkpoint_name(step)}/{MANIFEST}"
        self.store.write(name, manifest)
        if self.store.read(name, MAX_MANIFEST_BYTES) != manifest:
            self.store.remove([name])
            raise StoreError("damaged", detail="the manifest read back has other bytes")
        self._write_owner(replace(owner, steps=tuple(sorted({*owner.steps, step}))))

    def complete_steps(self) -> list[int]:
        """Steps with a manifest, by the listing and by `run.json`, the newest first. Their manifests decide."""
        names = (name.partition("/") for name in self.store.list_sizes())
        listed = {step for folder, _, file in names if file == MANIFEST and (step := step_in_name(folder)) is not None}
        owner = self.read_owner()
        return sorted(listed | set(owner.steps if owner else ()), reverse=True)

    def read_manifest(self, step: int, name: str = MANIFEST) -> tuple[Manifest, bytes]:
        """The manifest of a step, and its bytes. Raises StoreError: `missing`, or `damaged` for two reads of others."""
        folder = checkpoint_name(step)
        for attempt in range(_READS):
            content = self.store.read(f"{folder}/{name}", MAX_MANIFEST_BYTES)
            try:
                manifest = parse_manifest(Path(folder), content)
                break
            except UserError:
                if attempt + 1 == _READS:
                    raise StoreError("damaged", detail=f"its `{name}` is not a manifest, or was changed") from None
        if manifest.step != step:
            raise StoreError("damaged", detail=f"its `{name}` is of step {manifest.step}")
        return manifest, content

    def own_manifests(self, name: str = MANIFEST) -> Iterator[Manifest]:
        """The manifests of the steps that a run of this prefix wrote, each read back now; the newest first."""
        owner = self.check_owner()
        listed = {step for key in self.store.list_sizes() if (step := step_in_name(key.partition("/")[0])) is not None}
        for step in sorted(listed | set(owner.steps), reverse=True):
            try:
                manifest, _ = self.read_manifest(step, name)
            except StoreError as error:
                if error.is_transient and error.kind != "damaged":
                    raise
                continue
            if manifest.get("run_id") in owner.runs:
                yield manifest

    def remove(self, manifest: Manifest) -> None:
        """Remove a step: its manifest first, then the files that it lists, then `files.json`. Nothing else goes."""
        owner, folder = self.check_owner(), checkpoint_name(manifest.step)
        if manifest.get("run_id") not in owner.runs:
            raise PrefixInUseError(f"`{folder}` is of the run `{manifest.get('run_id')}`")
        self._write_owner(replace(owner, steps=tuple(step for step in owner.steps if step != manifest.step)))
        self.store.remove([f"{folder}/{MANIFEST}"])
        self.store.remove(f"{folder}/{name}" for name in manifest.files)
        self.store.remove([f"{folder}/{INTENT}"])

    def remove_leftovers(self, except_steps: Collection[int]) -> list[int]:
        """Remove uploads and removals of this prefix's runs that were killed; returns their steps."""
        sizes = self.store.list_sizes()
        removed = []
        for manifest in list(self.own_manifests(INTENT)):
            if manifest.step in except_steps or f"{checkpoint_name(manifest.step)}/{MANIFEST}" in sizes:
                continue
            if self.store.size(f"{checkpoint_name(manifest.step)}/{MANIFEST}") is None:  # the listing may lag
                self.remove(manifest)
                removed.append(manifest.step)
        return removed

    def _write_owner(self, owner: StoreOwner) -> None:
        content = (json.dumps(owner.to_json(), indent=1) + "\n").encode()
        self.store.write(OWNER, content)
        if self.store.read(OWNER, _MAX_OWNER_BYTES) != content:
            raise PrefixInUseError("another run writes `run.json` at the same time")
        self.owner = owner


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
