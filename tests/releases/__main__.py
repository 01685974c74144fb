# SPDX-License-Identifier: Apache-2.0
"""The grid: each release of DeepSpeed against one plain torch process.

    python -m tests.releases [RELEASE ...] [--ops] [--again] [--list]

Without releases, all those that have no result yet, the newest first. A result is added to
`tests/releases/release_grid.json` as soon as its release is done, so that a call which was ended goes on with the next
one. `--ops` runs the cells that need ops which are compiled for minutes: offload by a ratio and to NVMe; with ccache on
PATH, `CCACHE_BASEDIR=/` and `CCACHE_NOHASHDIR=1`, releases with the same sources share what was compiled. `--again` runs
releases that have a result. `--list` prints the cells.

    python -m tests.releases --conformance [RELEASE ...] [--again]

draws DeepSpeed JSONs, and compares what each release does with them with what the gates say of it
(`tests/releases/release_conformance.json`). `--again` judges once more, with the answers of DeepSpeed that are kept.

    python -m tests.releases --new RELEASE > draft.md

downloads a new release, runs its grid and its conformance sample, and prints a draft of what to look at: keys,
defaults, messages, quotes, patch targets, gates to recheck by hand, cells, disagreements.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from tests.releases.archives import SUPPORTED_RELEASES
from tests.releases.cells import covering_array, needs_ops
from tests.releases.conformance import run_conformance
from tests.releases.draft import write_draft
from tests.releases.grid_file import Part, known_boxes, load_grid, save_result, summarize
from tests.releases.trials import CannotRun, run_cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", help="such as 0.18.2")
    parser.add_argument("--ops", action="store_true", help="the cells that need compiled ops")
    parser.add_argument("--again", action="store_true", help="also releases that have a result")
    parser.add_argument("--conformance", action="store_true", help="drawn JSONs, against the gates")
    parser.add_argument("--list", action="store_true", help="print the cells")
    parser.add_argument("--new", metavar="RELEASE", help="run the grid of a new release and print what to look at")
    parser.add_argument("--before", default=SUPPORTED_RELEASES[-1], help="the release that it is compared with")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the `finally` that ends the ranks
    if arguments.new:
        run_grid([arguments.new], ops=False, again=False, log=sys.stderr)
        run_conformance([arguments.new], again=False, log=sys.stderr)
        print(write_draft(arguments.new, arguments.before))
        return 0
    if arguments.list:
        cells = [cell for cell in covering_array() if needs_ops(cell) == arguments.ops]
        print("\n".join(" ".join(f"{name}={value}" for name, value in cell.items()) for cell in cells))
        return 0
    releases = arguments.releases or reversed(SUPPORTED_RELEASES)
    if arguments.conformance:
        run_conformance(releases, again=arguments.again, log=sys.stdout)
        return 0
    run_grid(releases, ops=arguments.ops, again=arguments.again, log=sys.stdout)
    return 0


def run_grid(releases: Iterable[str], *, ops: bool, again: bool, log: TextIO) -> None:
    """Run releases one after another, each into the file as soon as it is done."""
    part: Part = "ops" if ops else "cells"
    cells = [cell for cell in covering_array() if needs_ops(cell) == ops]
    for release in releases:
        if part in load_grid()["releases"].get(release, {}) and not again:
            continue
        start = time.monotonic()
        try:
            result = summarize(run_cells(release, cells, boxes=known_boxes(part)))
        except CannotRun as error:
            if error.is_slow:
                print(f"{release} {part}: no result, {error}", file=log, flush=True)
                continue
            result = {"not_run": str(error)}
        result["seconds"] = round(time.monotonic() - start)
        save_result(release, part, result)
        red = result.get("red", {})
        print(
            f"{release} {part}: {result.get('not_run') or f'{len(red)} red'}, {result['seconds']} s",
            file=log,
            flush=True,
        )
        for box in result.get("boxes", []):
            print("   ", box, file=log, flush=True)


if __name__ == "__main__":
    sys.exit(main())
