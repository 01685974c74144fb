"""The console script, and `python -m harness`. Only what must happen before the first import is here."""

from __future__ import annotations

import gc
import os


def start() -> None:
    """Run the program. What is imported stays, so nobody looks for garbage meanwhile: a tenth of the start-up time."""
    gc.disable()
    # pydantic would look for plugins in the metadata of every installed package; no model here has one.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from harness.cli.app import main

    main()


if __name__ == "__main__":
    start()
