# SPDX-License-Identifier: Apache-2.0
"""The cache of prepared data: folders named by a hash of everything that they depend on, shared by a user's runs.

A folder appears whole or not at all. When two runs need the same data at once, the second waits and reuses it. What
another user made in a shared cache is left alone, unless that user is trusted: this user's is next to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import input_limits
from harness.errors import UserError, user_error
from harness.file_io import fsync_folder, parse_json, read_regular, replace_file
from harness.locks import Lock, LockHeld
from harness.planted_files import TRUSTED_ACCOUNTS, find_foreign_owner_below
from harness.run.resolved_run import ResolvedRun
from harness.runtime import plugin_loader
from harness.runtime.dataset.data_plan import DataPlan, build_data_plan
from harness.runtime.dataset.preparation import LAYOUT_VERSION, PreparedData, prepare_data
from harness.runtime.dataset.progress_bar import ProgressDisplay
from harness.runtime.dataset.stored_sources import with_local_copies
from harness.spec.run_spec import RunSpec
from harness.spec.sections.data_spec import DataSource, DataSpec
from harness.spec.sections.section import Section

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_KEPT_FILES = 3
"""Files of records that stay in a cache."""
_CHUNK = 1 << 22
_POLL_SECONDS = 0.2
_NOT_IN_CACHE_KEY = {"train", "eval", "shuffle", "group_by_length", "pad_to_multiple_of", "num_proc", "cache_dir"}
_NOT_IN_CACHE_KEY |= {"streaming", "chat_template"}
"""Settings that do not change the stored files; sources and the template are in the key by their content."""


def prepare_or_reuse(
    run: ResolvedRun, tokenizer: PreTrainedTokenizerBase, *, show_progress: bool = True
) -> tuple[Path, PreparedData, bool]:
    """The folder of this run's data, its content, and whether it was a cache hit; else prepares it.

    Raises UserError (MD11x, MD12x) for data that cannot be used, and for a cache that cannot be written.
    """
    root = cache_root(run.spec.data)
    try:
        root.mkdir(parents=True, exist_ok=True)
        memory = own_path(root / "files")
        memory.mkdir(exist_ok=True)
        data = with_local_copies(add_plugin_documents(run.spec, own_path(root / "own")), own_path(root / "stores"))
        plan = build_data_plan(data, tokenizer, lambda path: file_sha256(path, memory), run.spec.objective)
        folder = own_path(root / cache_key(run, tokenizer, plan))
        with _lock_key(root / f"{folder.name}-{os.geteuid()}.lock"):
            prepared = read_cache(folder)
            if prepared is not None:
                return folder, prepared, True
            folder, prepared = _prepare_folder(run, tokenizer, plan, folder, show_progress=show_progress)
            return folder, prepared, False
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise user_error(
            "MD129",
            f"the data cache `{root}` cannot be used: {reason}",
            key="data.cache_dir",
            fix="set `data.cache_dir` to a folder on a disk with free space",
        ) from None


def cache_root(data: DataSpec) -> Path:
    """`data.cache_dir`, else the user's cache folder."""
    if data.cache_dir is not None:
        return Path(data.cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness" / "data"


def own_path(path: Path) -> Path:
    """The path, or where another user made what is there, one with this user's number after it. Says so on stderr.
    Raises UserError (MD129) where another user made that too.
    """
    foreign = find_foreign_owner_below(path)
    if foreign is None:
        return path
    own = path.with_name(f"{path.name}-{os.geteuid()}")
    if find_foreign_owner_below(own) is not None:
        effect = f"the run would have trained on that user's rows; `{own.name}` next to it is another user's too"
        fix = "set `data.cache_dir` to a folder that you own"
        raise UserError([foreign.to_finding("MD129", effect, fix, key="data.cache_dir")])
    note = f"data: {foreign}, so that it is not used; {own.name} is (trusted: {TRUSTED_ACCOUNTS}='{foreign.account}')"
    print(note, file=sys.stderr, flush=True)  # noqa: T201
    return own


def read_cache(folder: Path) -> PreparedData | None:
    """The content of a folder of the cache; None when the folder or one of its files is missing or truncated."""
    prepared = PreparedData.read(folder)
    if prepared is None:
        return None
    try:
        sizes = parse_json(read_regular(folder / "sizes.json", input_limits.RUN_FILE))
        complete = all("/" not in name and _size_of(folder / name) == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return None
    return prepared if complete else None


def _size_of(file: Path) -> int:
    """Of a regular file; -1 of anything else. Raises OSError."""
    status = file.lstat()
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _prepare_folder(
    run: ResolvedRun, tokenizer: PreTrainedTokenizerBase, plan: DataPlan, folder: Path, *, show_progress: bool
) -> tuple[Path, PreparedData]:
    """Prepare in a temporary folder, then rename: nobody sees half of it. Removes the leftovers of a killed run."""
    prefix = f".{folder.name}.{socket.gethostname()}."
    for old in folder.parent.glob(f"{prefix}*.tmp"):  # of this machine: under the lock, no process writes them
        if old.lstat().st_uid == os.geteuid():
            shutil.rmtree(old, ignore_errors=True)
    temporary = folder.with_name(f"{prefix}{os.getpid()}-{secrets.token_hex(4)}.tmp")
    temporary.mkdir()  # with a name that nobody could have planted
    try:
        prepared = prepare_data(run, tokenizer, temporary, plan, ProgressDisplay(plan.size, visible=show_progress))
        sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        replace_file(temporary / "sizes.json", json.dumps(sizes) + "\n")
        folder = own_path(folder)  # the lock keeps no other user out
        ready = read_cache(folder)
        if ready is not None:
            return folder, ready
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        fsync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder, prepared


@contextmanager
def _lock_key(path: Path) -> Iterator[None]:
    """One preparation of a key at a time on this machine; the kernel releases the lock of a dead process. No other user
    can open its file. Says on stderr for whom it waits.
    """
    lock, is_said = None, False
    while lock is None:
        try:
            lock = Lock.acquire(path, "preparing data", private=True)
        except LockHeld as held:
            if not is_said:
                holder = held.holder or "another process"
                print(f"data: waits for {holder}, the holder of {path}", file=sys.stderr, flush=True)  # noqa: T201
                is_said = True
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def cache_key(run: ResolvedRun, tokenizer: PreTrainedTokenizerBase, plan: DataPlan) -> str:
    """The name of the folder: sha256 of the contents, the tokenizer, its template and the settings that matter."""
    data = run.spec.data
    settings = {k: v for k, v in data.model_dump(mode="json").items() if k not in _NOT_IN_CACHE_KEY}
    parts = {
        "version": LAYOUT_VERSION,
        "sources": plan.identity,
        "tokenizer": tokenizer_sha256(tokenizer),
        "settings": settings,
        "seed": run.spec.train.seed,
    }
    if run.spec.objective in ("classification", "reward"):
        section: Section = getattr(run.spec, run.spec.objective)
        parts |= {run.spec.objective: section.model_dump(mode="json")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Of everything that maps text to ids, and of the chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    body = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    special = {k: str(v) for k, v in tokenizer.special_tokens_map.items()}
    text = json.dumps([body, special, tokenizer.chat_template, len(tokenizer)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(path: Path, memory: Path) -> str:
    """Of the file's bytes; cached in the folder `memory` while name, size, time and inode stay the same."""
    stat = path.stat()
    identity = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
    note = memory / hashlib.sha256(identity.encode()).hexdigest()[:32]
    try:
        digest = read_regular(note, 64).decode()
        if len(digest) == 64:
            return digest
    except (OSError, ValueError):
        pass
    digest = _hash_bytes(path)
    with contextlib.suppress(OSError):  # the next run reads the file again
        replace_file(note, digest, durable=False)
    return digest


def _hash_bytes(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def add_plugin_documents(spec: RunSpec, folder: Path) -> DataSpec:
    """The `data` section, with the plug-in's documents as training data if it has any.

    Each start writes the records again, to a file named by their sha256: the inputs of the function may have changed.
    Raises UserError (MD157, MD158).
    """
    plugin = plugin_loader.load_plugin(spec)
    if plugin is None or plugin.load_documents is None:
        return spec.data
    if spec.data.train:
        raise user_error(
            "MD158",
            "`data.train` is set, and the plug-in has `load_documents`",
            key="data.train",
            fix="remove one of the two",
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        path = _write_records(plugin.load_documents(spec), folder)
    except OSError:
        raise
    except Exception as error:
        raise user_error(
            "MD158",
            f"`load_documents` of the plug-in fails: {type(error).__name__}: {error}",
            key="plugins.file",
            notes=('it must yield records such as {"text": "..."}, of values that JSON can hold',),
            fix="fix the function",
        ) from error
    for old in sorted(folder.glob("*.jsonl"), key=lambda p: p.stat().st_mtime)[:-_MAX_KEPT_FILES]:
        old.unlink(missing_ok=True)
    return spec.data.model_copy(update={"train": (DataSource(path=str(path)),)})


def _write_records(records: Iterable[Mapping[str, Any]], folder: Path) -> Path:
    """Write one record a line; the file appears when it is complete."""
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for record in records:
                line = json.dumps(dict(record), ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                file.write(line)
        path = folder / f"{digest.hexdigest()[:32]}.jsonl"
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
