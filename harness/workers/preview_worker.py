# SPDX-License-Identifier: Apache-2.0
"""Prepares a run's data, or finds it prepared, and prints what the model will see as one JSON object."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Prepare the data and print the preview, or the findings that refuse it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, metavar="FILE", help="a `spec.resolved.json`")
    parser.add_argument("--examples", type=int, default=3, metavar="N", help="how many decoded sequences")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    # Libraries print to stdout too; their output must not mix with the result.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from harness.errors import UserError
    from harness.interpreter import freeze_imports, remove_repeated_root
    from harness.printed_text import guard_streams
    from harness.run.resolved_run import ResolvedRun

    remove_repeated_root()
    with freeze_imports():
        from harness.runtime.dataset.preview import preview_dataset
        from harness.runtime.objectives.custom import Custom

    try:
        run = ResolvedRun.from_json(json.loads(arguments.run.read_text(encoding="utf-8")))
        with contextlib.nullcontext() if sys.stderr.isatty() else guard_streams():  # a terminal has a bar
            is_custom = run.spec.objective == "custom"
            body = (
                Custom(run).preview_rows(arguments.examples) if is_custom else preview_dataset(run, arguments.examples)
            )
    except UserError as error:
        body = {"refused": [f.to_json() for f in error.findings]}
    json.dump(body, out)
    out.close()


if __name__ == "__main__":
    main()
