# SPDX-License-Identifier: Apache-2.0
"""`python -m harness.patches`: the page `docs/patches.md`, or the targets that the installed packages have changed."""

from __future__ import annotations

import argparse
import sys

from harness.patches.patch_page import render_changes, render_page


def main() -> int:
    """Print the page, or with `--changed` the changed targets; returns 1 where one has changed."""
    parser = argparse.ArgumentParser(prog="python -m harness.patches", description=__doc__)
    parser.add_argument("--changed", action="store_true", help="list the changed targets, with their new digests")
    if not parser.parse_args().changed:
        sys.stdout.write(render_page())
        return 0
    changes = render_changes()
    sys.stdout.write("".join(f"{line}\n" for line in changes) or "all targets are as tested\n")
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
