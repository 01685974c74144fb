# SPDX-License-Identifier: Apache-2.0
"""Prepare the data of a distributed run: one rank a node does the work, and all ranks map the same files."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError, user_error
from harness.file_io import replace_file
from harness.run.resolved_run import ResolvedRun
from harness.runtime.dataset.bad_records import SKIPPED_FILE
from harness.runtime.dataset.cache import prepare_or_reuse, read_cache
from harness.runtime.dataset.preparation import META_FILE, PreparedData
from harness.runtime.dataset.unused_columns import describe_unused_columns
from harness.runtime.distributed import Distributed
from harness.runtime.user_errors import print_findings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prepare_on_node_leaders(
    run: ResolvedRun, tokenizer: PreTrainedTokenizerBase, folder: Path, distributed: Distributed
) -> tuple[PreparedData, Path]:
    """Prepare the token files once a node. Rank 0 is the first: on a shared disk the other nodes reuse its files.

    Returns the prepared data and the folder of this node's cache that holds it. `folder`, of the run directory, gets
    links to the files. An error of one rank is raised on all.
    """
    leader_folder: str | None = None
    for is_turn in (distributed.is_main_process, distributed.is_local_main_process and not distributed.is_main_process):
        error = None
        if is_turn:
            try:
                cache, _, _ = prepare_or_reuse(run, tokenizer)
                leader_folder = str(cache.absolute())
            except UserError as refusal:
                error = refusal
        distributed.long_barrier()
        distributed.raise_everywhere(error)
    folders = distributed.all_gather_object(leader_folder)
    # The node's leader is its first rank: the last leader up to this rank.
    cache = Path(next(name for name in reversed(folders[: distributed.rank + 1]) if name is not None))
    prepared = read_cache(cache)
    if prepared is None:
        raise FileNotFoundError(f"{cache}/{META_FILE}")
    if len(set(distributed.all_gather_object(prepared.sha256))) > 1:
        raise user_error(
            "MD119", "the hosts read different training text", key="data.train", fix="give every host the same files"
        )
    if distributed.is_main_process:
        _link_cache(folder, cache, prepared)
        _report_skipped_records(prepared, cache)
        if prepared.unused_columns:
            print_findings(describe_unused_columns(prepared.unused_columns))
    return prepared, cache


def _report_skipped_records(prepared: PreparedData, cache: Path) -> None:
    """In every run, also in one that reuses a cache."""
    if prepared.skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(prepared.skipped.items()))
        print(f"data: records left out: {kinds}, listed in {cache / SKIPPED_FILE}", file=sys.stderr, flush=True)  # noqa: T201


def _link_cache(folder: Path, cache: Path, prepared: PreparedData) -> None:
    """Give the run directory a description of its data, and links to the files in the cache."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in cache.iterdir():
        link = folder / path.name
        if path.name != META_FILE and not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(path)
    body: dict[str, Any] = {**asdict(prepared), "cache": str(cache)}
    replace_file(folder / META_FILE, json.dumps(body) + "\n")
