# SPDX-License-Identifier: Apache-2.0
"""The console script, and `python -m harness`."""

from __future__ import annotations

import gc
import os
import sys


def start() -> None:
    """Run the program. It collects garbage rarely: what a command makes, it keeps."""
    _configure_streams()
    gc.set_threshold(50_000)
    from harness.cli.app import main

    main()


def _configure_streams() -> None:
    """No print fails, in any locale; output to a closed stream is dropped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        else:
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    start()
