"""The compiled code of all gates in one file: reading it takes a quarter of the time of importing some 300 modules.

A cache like Python's own, beside it in `__pycache__`: made after the first import, dropped when a source changes, never
needed. Knows nothing about gates.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

Stamp = list[tuple[str, int, int]]


def import_all(package: str, folder: str) -> None:
    """Import every module one level below the sub-packages of `package`, whose files are in `folder`."""
    stamp = _stamp(folder)
    file = os.path.join(folder, "__pycache__", f"bundle.{sys.implementation.cache_tag}-{sys.flags.optimize}")  # noqa: PTH118
    finder = _Finder(package, folder, _read(file, stamp))
    names = [_name(package, path) for path, _, _ in stamp]
    if finder.codes:
        sys.meta_path.insert(0, finder)
    try:
        for name in names:
            if name not in sys.modules:
                (finder.load if name in finder.codes else import_module)(name)
    finally:
        if finder.codes:
            sys.meta_path.remove(finder)
    if not finder.codes and not sys.dont_write_bytecode:
        _write(file, stamp, names)


def _stamp(folder: str) -> Stamp:
    """(path below the folder, time of change, size) of every source, packages before what is in them."""
    found: Stamp = []
    with os.scandir(folder) as families:
        for family in sorted(entry.name for entry in families if entry.is_dir() and entry.name[0] not in "_."):
            with os.scandir(os.path.join(folder, family)) as files:  # noqa: PTH118
                for entry in sorted(files, key=lambda entry: entry.name):
                    if entry.name.endswith(".py"):
                        status = entry.stat()
                        found.append((f"{family}/{entry.name}", status.st_mtime_ns, status.st_size))
    return found


def _name(package: str, path: str) -> str:
    return f"{package}.{path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"


def _read(file: str, stamp: Stamp) -> dict[str, CodeType]:
    """The code by module name; nothing when there is no cache, or one of other sources."""
    try:
        with open(file, "rb") as stream:  # noqa: PTH123
            content = stream.read()
        head = _head(stamp)
        return marshal.loads(content[len(head) :]) if content.startswith(head) else {}  # noqa: S302
    except (OSError, ValueError, EOFError, TypeError):
        return {}


def _head(stamp: Stamp) -> bytes:
    return f"{stamp!r}\n".encode()


def _write(file: str, stamp: Stamp, names: Sequence[str]) -> None:
    codes = {}
    for name in names:
        loader: Any = getattr(sys.modules[name].__spec__, "loader", None)
        codes[name] = loader.get_code(name) if loader else None
    temporary = f"{file}.{os.getpid()}"
    try:
        with open(temporary, "wb") as stream:  # noqa: PTH123
            stream.write(_head(stamp) + marshal.dumps(codes))
        os.replace(temporary, file)  # noqa: PTH105
    except (OSError, ValueError):
        return  # a folder that may not be written: the next start imports one by one again


class _Finder:
    """Finds modules in the cache, for the import system."""

    def __init__(self, package: str, folder: str, codes: dict[str, CodeType]) -> None:
        self.package = package
        self.folder = folder
        self.codes = codes

    def load(self, name: str) -> None:
        """Import the module as `import_module` would, without its search, locks and copies: a third of the time."""
        spec: Any = self.find_spec(name)
        module = ModuleType(name)
        module.__spec__, module.__file__, module.__package__ = spec, spec.origin, spec.parent
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        sys.modules[name] = module
        try:
            self.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        parent, _, own = name.rpartition(".")
        setattr(sys.modules[parent], own, module)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name not in self.codes:
            return None
        below = name.removeprefix(f"{self.package}.")
        is_package = "." not in below
        file = os.path.join(self.folder, *below.split("."))  # noqa: PTH118
        loader: Any = self  # importlib.abc, which would call it one, takes as long to import as all gates
        spec = ModuleSpec(
            name, loader, origin=f"{file}/__init__.py" if is_package else f"{file}.py", is_package=is_package
        )
        spec.has_location = True
        spec.cached = spec.origin  # or the import system would work out where a .pyc should be, for each of them
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(file)
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        exec(self.codes[module.__name__], module.__dict__)  # noqa: S102
