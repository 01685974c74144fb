"""The cache of compiled gates: never needed, never stale."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path

import pytest

from harness import bundle
from harness.gates.registry import all_gates


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two families; `seen` collects what runs."""
    name = f"bundled_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    for file, text in {
        "__init__.py": "seen = []\n",
        "one/__init__.py": "",
        "one/a.py": f"from {name} import seen\nfrom {name}.two.c import C\nseen.append('a1')\n",
        "two/__init__.py": '"""Two."""\n',
        "two/c.py": "C = 3\n\n\ndef f():\n    return C\n",
    }.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def load():
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            del sys.modules[module]
        importlib.invalidate_caches()
        made = importlib.import_module(name)
        bundle.import_all(name, str(folder))
        return made

    (folder / "__pycache__").mkdir()
    yield folder, load
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


def cache(folder: Path) -> Path:
    (found,) = (folder / "__pycache__").glob("bundle.*")
    return found


def test_the_second_time_comes_from_the_cache_and_is_the_same(package):
    folder, load = package
    assert load().seen == ["a1"]
    before = cache(folder).stat().st_mtime_ns
    made = load()
    assert made.seen == ["a1"]
    c = sys.modules[f"{folder.name}.two.c"]
    assert type(c.__spec__.loader).__name__ == "_Finder"
    assert c.__file__ == str(folder / "two" / "c.py")
    assert inspect.getsource(c.f) == "def f():\n    return C\n"
    assert made.two.c is c
    assert made.two.__doc__ == "Two."
    assert cache(folder).stat().st_mtime_ns == before
    assert not any(type(finder).__name__ == "_Finder" for finder in sys.meta_path)


def test_a_changed_a_new_and_a_removed_source_count(package):
    folder, load = package
    load()
    (folder / "one" / "a.py").write_text(f"from {folder.name} import seen\nseen.append('a2')\n")
    assert load().seen == ["a2"]
    (folder / "one" / "b.py").write_text(f"from {folder.name} import seen\nseen.append('b')\n")
    assert load().seen == ["a2", "b"]
    (folder / "one" / "a.py").unlink()
    assert load().seen == ["b"]


@pytest.mark.parametrize("content", [b"", b"junk", b"[]\n", bytes(range(256))])
def test_a_broken_cache_is_made_again(content, package):
    folder, load = package
    load()
    good = cache(folder).read_bytes()
    cache(folder).write_bytes(content)
    assert load().seen == ["a1"]
    cache(folder).write_bytes(good[: good.index(b"\n") + 20])
    assert load().seen == ["a1"]


def test_a_folder_that_may_not_be_written_is_no_trouble(package, monkeypatch):
    _, load = package
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError()))
    assert load().seen == ["a1"]


def test_every_gate_file_is_found():
    folder = Path(bundle.__file__).parent / "gates"
    files = {p.relative_to(folder).with_suffix("").as_posix() for p in folder.glob("*/*.py")}
    names = {gate.check.__module__.removeprefix("harness.gates.").replace(".", "/") for gate in all_gates()}
    assert names <= files
    for name in files - names:
        assert f"harness.gates.{name.removesuffix('/__init__').replace('/', '.')}" in sys.modules
