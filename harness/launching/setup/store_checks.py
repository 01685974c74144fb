# SPDX-License-Identifier: Apache-2.0
"""Checks of the object stores that a run names, before a rank starts: one finding for each that cannot be used.

A check writes, reads and removes one small key below a prefix that the run will write to, and nothing in a dry run.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from harness.checkpoints.store_export import exporting_run
from harness.checkpoints.store_source import parse_url_finding, store_finding
from harness.checkpoints.stored_run import StoredRun
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.object_stores.object_store import PROBE_PREFIX, ObjectStore, find_files, static_parent
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import StoreUrl

_ANSWER_SECONDS = 45.0
"""The limit for one store: a network that drops packets answers nothing."""


@contextmanager
def with_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """In this context the environment of this process has the variables of `launch.env`, as ranks have them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def require_stores(
    urls: Iterable[tuple[str, str]],
    variables: Mapping[str, str],
    resumed_runs: tuple[str, ...],
    *,
    node_rank: int | None = None,
    read_only: bool = False,
) -> None:
    """Raises UserError with the findings of `check_stores`; the first host asks for all."""
    findings = check_stores(urls, variables, resumed_runs, read_only=read_only) if not node_rank else []
    if findings:
        raise UserError(findings, ExitCode.PREFLIGHT)


def check_stores(
    urls: Iterable[tuple[str, str]],
    variables: Mapping[str, str],
    resumed_runs: tuple[str, ...] = (),
    *,
    read_only: bool = False,
) -> list[Finding]:
    """The findings about the URLs of a spec, each with its key (`harness.spec.named_paths.find_store_urls`).
    `variables` is `launch.env`; `resumed_runs` are the runs that this one continues, whose prefixes it may take.
    """
    checks = {
        "checkpoint.upload_to": _check_checkpoint_prefix(resumed_runs, read_only),
        "export.upload_to": _check_export_prefix(resumed_runs, read_only),
    }
    with with_environment(variables):
        return [finding for key, url in urls for finding in _check(key, url, checks.get(key, _check_data))]


Check = Callable[[StoreUrl, str], Iterator[Finding]]


def _check(key: str, text: str, check: Check) -> list[Finding]:
    """The findings of one check, within a time limit. One for a store that cannot be used."""
    try:
        url = parse_url_finding(text, key)
    except UserError as error:
        return list(error.findings)
    if find_spec(url.package) is None or find_spec("fsspec") is None:
        return [store_finding(StoreError("no package"), url, key, _effect(key))]
    findings: list[Finding] = []

    def run() -> None:
        try:
            answer = list(check(url, key))
        except StoreError as error:
            answer = [store_finding(error, url, key, _effect(key))]
        findings.extend(answer)

    thread = threading.Thread(target=run, name="store-check", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if thread.is_alive():
        silent = StoreError("unreachable", detail=f"the store does not answer within {_ANSWER_SECONDS:.0f} s")
        return [store_finding(silent, url, key, _effect(key))]
    return findings


def _effect(key: str) -> str:
    if key.startswith("data."):
        return "the ranks would have ended before the first step"
    return "the run would have trained without any checkpoint in the store"


def _check_checkpoint_prefix(resumed_runs: tuple[str, ...], read_only: bool) -> Check:
    def check(url: StoreUrl, key: str) -> Iterator[Finding]:
        stored = StoredRun(_open(url))
        owner = stored.read_owner()
        foreign = stored.store.find_entry() if owner is None else None
        if owner is not None and not {owner.run_id} & set(resumed_runs):
            yield _in_use(url, key, f"the run `{owner.name}` writes there", f"--resume {url}")
        elif foreign is not None:
            yield _in_use(url, key, f"`{foreign}` already exists", "")
        elif not read_only:
            _write_and_remove(stored.store)

    return check


def _check_export_prefix(resumed_runs: tuple[str, ...], read_only: bool) -> Check:
    def check(url: StoreUrl, key: str) -> Iterator[Finding]:
        store = _open(url)
        foreign = store.find_entry()
        if foreign is not None and exporting_run(store) not in resumed_runs:
            yield _in_use(url, key, f"`{foreign}` already exists", "")
        elif not read_only:
            _write_and_remove(store)

    return check


def _check_data(url: StoreUrl, key: str) -> Iterator[Finding]:
    if not find_files(_open(static_parent(url)), url):
        message = f"`{url}` matches no file in the store"
        fix = Fix(f"name files in `{key}`, such as `{url.scheme}://{url.bucket}/texts/*.jsonl`")
        yield Finding("ST109", "error", message, key, notes=(_effect(key),), fix=fix)


def _in_use(url: StoreUrl, key: str, problem: str, resume: str) -> Finding:
    fix = f"name another prefix, such as `{url}-2`" + (f", or continue that run: {resume}" if resume else "")
    effect = "two writers below one prefix would overwrite and remove each other's files"
    return Finding("ST106", "error", f"the prefix `{url}` is in use: {problem}", key, notes=(effect,), fix=Fix(fix))


def _open(url: StoreUrl) -> ObjectStore:
    return ObjectStore(url, attempts=2)


def _write_and_remove(store: ObjectStore) -> None:
    name, content = f"{PROBE_PREFIX}{uuid.uuid4().hex}", b"harness"
    store.write(name, content)
    if store.read(name, 100) != content:
        raise StoreError("damaged")
    store.remove([name])
