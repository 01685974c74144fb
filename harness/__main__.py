"""The console script, and `python -m harness`. Only what must happen before the first import is here."""

from __future__ import annotations

import gc
import os
import sys


def start() -> None:
    """Run the program. What is imported stays, so nobody looks for garbage meanwhile: a tenth of the start-up time."""
    gc.disable()
    # pydantic would look for plugins in the metadata of every installed package; no model here has one.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _open_streams()
    from harness.cli.app import main

    main()


def _open_streams() -> None:
    """Whatever the locale, nothing that is printed fails; a closed stream swallows what it is told."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        else:
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    start()
