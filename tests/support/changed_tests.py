# SPDX-License-Identifier: Apache-2.0
"""Run the tests that a change touches, the nearest first, until the time is up:

    python -m tests.support.changed_tests light --seconds 120 [--base main] [--list]

The change is what differs from the merge base with `--base`, with what is not committed. Distance of a test module:
0, it was changed, or it has the name of a changed module (`test_NAME*.py`); 1, it or a helper of it imports a changed
module; 2, it lies in the folder that mirrors the module's, or its text has the name of a changed file that is no module.
Of the training tier only distance 0 is run. The exit code is 1 when a test fails, and 0 when the time is up before all
have run; the last line says so. It cannot see a test that starts a command and so imports nothing, and effects over more
than one import.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = ("tests/test_names.py", "tests/test_lookups.py")
"""Rules over the whole tree, a second or two."""
LEFT_OUT = ("tests/test_readme.py", "tests/test_hooks.py", "tests/hosts", "tests/kill")
"""Minutes each, and they train, or install the project: only where the test itself was changed."""
OTHER_TIERS = re.compile(r"^pytestmark = .*\bpytest\.mark\.(training|hosts|gpu)\b", re.MULTILINE)


def git(*words: str) -> list[str]:
    """The lines that git prints."""
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).splitlines()


def find_changed_files(base: str) -> set[str]:
    """Paths that differ from the merge base with `base`, also those that are not committed or not tracked."""
    start = git("merge-base", "HEAD", base)[0]
    return {*git("diff", "--name-only", "--no-renames", start), *git("ls-files", "--others", "--exclude-standard")}


def is_light(test: str) -> bool:
    """Whether neither the module nor a `conftest.py` above it is marked with another tier."""
    sources = [ROOT / test, *(folder / "conftest.py" for folder in (ROOT / test).parents if ROOT in folder.parents)]
    texts = (path.read_text(encoding="utf-8") for path in sources if path.is_file())
    return not any(map(OTHER_TIERS.search, texts))


@cache
def read_imports(path: Path) -> frozenset[str]:
    """The names that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(names)


def find_imports(test: Path) -> set[str]:
    """The names that a test imports, itself or through helpers, and the paths of these helpers."""
    imports: set[str] = set()
    files = [test]
    while files:
        path = files.pop()
        names = read_imports(path)
        places = (ROOT, path.parent, ROOT / "tests")
        candidates = {place / f"{name.replace('.', '/')}.py" for name in names for place in places}
        helpers = {str(file.relative_to(ROOT)) for file in candidates if file.is_file()}
        helpers = {helper for helper in helpers if helper.startswith("tests/")} - imports
        files += [ROOT / helper for helper in helpers]
        imports |= names | helpers
    return imports


def rank_tests(changed: set[str]) -> dict[str, int]:
    """Test modules that the change touches -> their distance, the nearest first."""
    tests = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    sources = {path for path in changed if path.startswith("harness/") and path.endswith(".py")}
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in sources}
    stems = {Path(path).stem for path in sources} - {"__init__"}
    folders = {f"tests/{folder}" for path in sources for folder in Path(path).parent.relative_to("harness").parts[:1]}
    data = {path for path in changed if path.startswith("tests/") and not path.endswith(".py")}
    folders |= {"/".join(path.split("/")[:2]) for path in data}
    others = {path if path.startswith(".") else Path(path).name for path in changed - sources if path[:6] != "tests/"}
    distances: dict[str, int] = dict.fromkeys(ALWAYS, 0)
    for test in tests:
        imports = find_imports(ROOT / test)
        text = (ROOT / test).read_text(encoding="utf-8")
        if test in changed or any(re.match(rf"test_{re.escape(stem)}(_|\.py)", Path(test).name) for stem in stems):
            distances[test] = 0
        elif imports & (modules | changed):
            distances[test] = 1
        elif any(test.startswith(f"{folder}/") for folder in folders) or any(name in text for name in others):
            distances[test] = 2
    kept = {t: d for t, d in distances.items() if t in changed or not t.startswith(LEFT_OUT)}
    return dict(sorted(kept.items(), key=lambda item: item[1]))


class TimeLimit:
    """A pytest plugin that ends the session when the time is up, and knows whether a test failed until then."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.ran = 0
        self.failed = self.is_up = False

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        self.failed |= report.failed
        if time.monotonic() > self.end:
            self.is_up = True
            # xdist's controller has a flag of its own.
            (self.session.config.pluginmanager.get_plugin("dsession") or self.session).shouldstop = "the time is up"


def main() -> int:
    """Select, run, and say what did not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tier", choices=("light", "training"))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--base", default="main")
    parser.add_argument("--list", action="store_true", help="print distances and test modules, and run nothing")
    options = parser.parse_args()
    try:
        changed = find_changed_files(options.base)
    except subprocess.CalledProcessError:
        parser.error(
            f"git knows no `{options.base}`; name the branch that you started from: --base, or make check BASE=..."
        )
    ranks = {t: d for t, d in rank_tests(changed).items() if is_light(t) == (options.tier == "light")}
    if options.tier == "training":
        ranks = {test: distance for test, distance in ranks.items() if distance == 0}
    print(f"{len(changed)} files differ from {options.base}: {len(ranks)} test modules of the {options.tier} tier")
    if options.list or not ranks:
        print("\n".join(f"{distance}  {test}" for test, distance in ranks.items()))
        return 0
    limit = TimeLimit(options.seconds)
    workers = ["-n", "2", "--maxschedchunk", "2"] if options.tier == "light" else []
    code = pytest.main(["-q", "-p", "no:cacheprovider", *workers, *ranks], plugins=[limit])
    if limit.is_up and not limit.failed:
        print(f"not all ran: {limit.ran} tests in {options.seconds:.0f} s, nearest first; `.ci/run` runs everything")
        return 0
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
