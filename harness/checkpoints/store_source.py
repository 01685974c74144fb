# SPDX-License-Identifier: Apache-2.0
"""The checkpoint in an object store that a run resumes from: chosen before the launch, `resume.json` for the ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints.latest import checkpoint_name, step_in_name
from harness.checkpoints.manifest import Manifest
from harness.checkpoints.stored_run import StoredRun
from harness.errors import UserError
from harness.file_io import parse_json
from harness.findings import Finding, Fix
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import StoreUrl, parse_store_url

SOURCE_FILE = "resume.json"


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A checkpoint below a prefix. `checksum` is that of its manifest, `run_id` is the run that saved it. `runs` are
    those that wrote the prefix, its owner last.
    """

    url: str
    step: int
    checksum: str
    runs: tuple[str, ...] = ()
    run_id: str = ""

    @property
    def folder_name(self) -> str:
        """The folder of the checkpoint, below the prefix and below the run directory's `checkpoints`."""
        return checkpoint_name(self.step)

    def to_text(self) -> str:
        """The content of `resume.json`."""
        return json.dumps({**asdict(self), "runs": list(self.runs)}, indent=1) + "\n"

    @staticmethod
    def read(run_dir: Path) -> StoreSource | None:
        """That of a run directory; None for a run that does not resume from a store."""
        try:
            body: Any = parse_json((run_dir / SOURCE_FILE).read_bytes())
            runs, run_id = tuple(body["runs"]), str(body.get("run_id", ""))
            return StoreSource(str(body["url"]), int(body["step"]), str(body["checksum"]), runs, run_id)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def parse_url_finding(text: str, key: str = "") -> StoreUrl:
    """The parts of a URL. Raises UserError (ST001), which does not repeat it."""
    try:
        return parse_store_url(text)
    except ValueError as error:
        message = f"the URL {f'of `{key}` ' if key else ''}cannot be used: {error}"
        fix = Fix("name a bucket and a prefix, such as `s3://bucket/runs/7`, and nothing else")
        raise UserError([Finding("ST001", "error", message, key, fix=fix)]) from None


def find_stored_checkpoint(requested: str) -> tuple[StoreSource, Manifest, list[str]]:
    """The newest complete checkpoint of the lineage of a prefix's owner, or the one that is named; its manifest, and a
    line for each that is skipped. Raises UserError (ST101 ..., CK001; CK134 where the lineage is not known).
    """
    url = parse_url_finding(requested)
    wanted = step_in_name(url.name)
    prefix = url if wanted is None else url.parent
    stored = StoredRun(ObjectStore(prefix))
    skipped: list[str] = []
    unknown: list[Manifest] = []
    try:
        owner = stored.read_owner()
        steps = stored.complete_steps() if wanted is None else [wanted]
        for step in steps:
            try:
                manifest, _ = stored.read_manifest(step)
                _check_sizes(stored, manifest)
            except StoreError as error:
                if error.kind not in ("missing", "damaged"):
                    raise
                skipped.append(f"skipped {prefix.child(checkpoint_name(step))}: {error}")
                continue
            run_id = str(manifest.get("run_id"))
            in_lineage = owner is None or wanted is not None or owner.is_in_lineage(run_id, step)
            if in_lineage is None:
                unknown.append(manifest)
            elif not in_lineage:
                reason = f"it is of the run `{run_id}`, and `{owner.run_id if owner else ''}` resumed before it"
                skipped.append(f"skipped {prefix.child(checkpoint_name(step))}: {reason}")
            elif unknown:
                unknown.append(manifest)
                break
            else:
                source = StoreSource(str(prefix), step, str(manifest["checksum"]), owner.runs if owner else (), run_id)
                return source, manifest, skipped
    except StoreError as error:
        raise UserError([store_finding(error, prefix, "", "no checkpoint could be read")]) from None
    if unknown:
        raise UserError([_unknown_lineage_finding(prefix, unknown)])
    fix = Fix("name a prefix that `checkpoint.upload_to` of a run had, or one checkpoint below it")
    message = f"`{prefix}` has no complete checkpoint"
    raise UserError([Finding("CK001", "error", message, notes=tuple(skipped), fix=fix)])


def _unknown_lineage_finding(prefix: StoreUrl, manifests: Sequence[Manifest]) -> Finding:
    """Of each run the newest."""
    newest = {str(manifest.get("run_id")): manifest.step for manifest in reversed(manifests)}
    names = [f"`{checkpoint_name(step)}` is of the run `{run_id}`" for run_id, step in newest.items()]
    message = f"`{prefix}` does not say which of its checkpoints its last run came from"
    note = "an older release wrote it: a run may have resumed from an older checkpoint, and abandoned the newer ones"
    step = next(iter(newest.values()))
    fix = Fix(f"name the checkpoint, such as `{prefix.child(checkpoint_name(step))}`")
    return Finding("CK134", "error", message, notes=(note, *names), fix=fix)


def _check_sizes(stored: StoredRun, manifest: Manifest) -> None:
    """Raises StoreError if the store lacks a file of the manifest. A file that is not listed is looked up by key."""
    folder = checkpoint_name(manifest.step)
    listed = stored.store.list_sizes(folder)
    for name, record in manifest.files.items():
        key = f"{folder}/{name}"
        size = listed[key] if listed.get(key) == record.bytes else stored.store.size(key)
        if size != record.bytes:
            has = "is missing" if size is None else f"has {size} bytes, should have {record.bytes}"
            raise StoreError("damaged", detail=f"`{name}` {has}")


def store_finding(error: StoreError, url: StoreUrl, key: str, effect: str) -> Finding:
    """The finding of a store that cannot be used: its id and fix by the kind of the error."""
    gate, fix = _FIXES.get(error.kind, ("ST105", "check the store's own log, and try again"))
    message = f"`{url}` cannot be used: {error}"
    return Finding(gate, "error", message, key, notes=(effect,), fix=Fix(fix.format(package=url.package)))


_FIXES = {
    "no package": ("ST100", "install `{package}` on every host: the extra `stores` has s3fs"),
    "no bucket": ("ST101", "correct the name of the bucket, or create it"),
    "no access": ("ST102", "let these credentials read, write, list and delete below the prefix"),
    "no credentials": (
        "ST103",
        "give the hosts credentials as `{package}` finds them: a role, a profile, or variables of the environment",
    ),
    "expired credentials": ("ST103", "renew the credentials"),
    "wrong region": ("ST104", "set the region of the bucket, for S3 by AWS_DEFAULT_REGION or the profile"),
    "unreachable": ("ST105", "check the network and the endpoint (for S3 AWS_ENDPOINT_URL), and try again"),
    "silent": ("ST105", "check that the store still answers, and try again"),
    "server error": ("ST105", "try again; the store has an internal error"),
    "disk": ("ST108", "free space, or set `launch.output_dir` to a larger disk"),
}
