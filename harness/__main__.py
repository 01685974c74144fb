"""The console script, and `python -m harness`. Only what must happen before the first import is here."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn


def start() -> None:
    """Run the program. What is imported stays, so nobody looks for garbage meanwhile: a tenth of the start-up time."""
    gc.disable()
    _disable_pydantic_plugins()
    _configure_streams()
    from harness.cli.app import main

    try:
        main()
    except SystemExit as end:
        _exit_fast(end)


def _exit_fast(end: SystemExit) -> NoReturn:
    """End at once where nothing runs any more: to take hundreds of modules apart first is a twentieth of the time."""
    if sys.argv[1:2] != ["validate-config"] or not isinstance(end.code, int):
        raise end
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(end.code)


def _disable_pydantic_plugins() -> None:
    """pydantic looks for plugins when it builds a validator, and even where they are switched off it imports
    `importlib.metadata` for that: a fifth of the start-up time. No model here has a plugin, so there is none to find.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    loader: Any = ModuleType("pydantic.plugin._loader")
    loader.get_plugins = lambda: ()
    sys.modules.setdefault(loader.__name__, loader)


def _configure_streams() -> None:
    """Whatever the locale, nothing that is printed fails; a closed stream swallows what it is told."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        else:
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    start()
