# SPDX-License-Identifier: Apache-2.0
"""`make check` selects the tests that a change touches. Needs nothing; seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.changed_tests import ALWAYS, find_changed_files, is_light, rank_tests

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("changed", "test", "distance"),
    [
        ("harness/run/resolved_run.py", "tests/plan/test_resolved_run.py", 0),
        ("harness/cli/launch.py", "tests/cli/test_launch.py", 0),
        ("harness/cli/launch.py", "tests/spec/test_accelerate_config.py", None),
        ("harness/gates/rules/offload_param.py", "tests/gates/test_every_gate.py", 2),
        ("tests/support/spec_walk.py", "tests/test_spec_walk.py", 1),
        ("tests/frozen/frozen_files.py", "tests/frozen/test_frozen_resume.py", 1),
        ("tests/frozen/0.1.0/zero2.yaml", "tests/frozen/test_frozen_files.py", 2),
        (".ci/run", "tests/test_ci.py", 2),
        (".ci/run", "tests/plan/test_resolved_run.py", None),
        ("action.yml", "tests/test_hooks.py", None),
        ("tests/test_hooks.py", "tests/test_hooks.py", 0),
        ("harness/no_longer_there.py", "tests/test_names.py", 0),
    ],
)
def test_distance(changed: str, test: str, distance: int | None) -> None:
    assert (ROOT / test).is_file()
    assert rank_tests({changed}).get(test) == distance


def test_the_nearest_come_first() -> None:
    distances = list(rank_tests({"harness/units.py"}).values())
    assert distances == sorted(distances)
    assert set(distances) == {0, 1}


def test_nothing_changed_leaves_the_rules_over_the_tree() -> None:
    assert rank_tests(set()) == dict.fromkeys(ALWAYS, 0)


def test_a_tier_is_read_from_the_module_and_the_folders_above() -> None:
    assert is_light("tests/plan/test_resolved_run.py")
    assert not is_light("tests/frozen/test_frozen_resume.py")


def test_a_file_that_git_does_not_track_is_a_change() -> None:
    file = ROOT / "tests" / "untracked_for_a_moment.txt"
    file.touch()
    try:
        assert "tests/untracked_for_a_moment.txt" in find_changed_files("HEAD")
    finally:
        file.unlink()


def test_a_base_that_is_not_there_is_a_user_error() -> None:
    command = [sys.executable, "-m", "tests.support.changed_tests", "light", "--base", "no-such-branch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "git knows no `no-such-branch`" in done.stderr


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "xdist"])
@pytest.mark.parametrize(("seconds", "expected"), [(0.5, "True"), (60.0, "False")])
def test_the_time_limit_ends_a_session(tmp_path: Path, workers: list[str], seconds: float, expected: str) -> None:
    body = "import time, pytest\n@pytest.mark.parametrize('n', range(12))\ndef test_sleep(n): time.sleep(0.2)\n"
    (tmp_path / "test_sleep.py").write_text(body)
    program = f"""
import pytest
from tests.support.changed_tests import TimeLimit
limit = TimeLimit({seconds})
code = pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", {str(tmp_path)!r}, *{workers!r}, {str(tmp_path)!r}], plugins=[limit])
print(limit.is_up, limit.failed, limit.ran < 12, int(code))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    is_up, failed, is_partial, code = done.stdout.splitlines()[-1].split()
    assert (is_up, failed, is_partial) == (expected, "False", expected), done.stdout
    assert code == ("2" if expected == "True" else "0")
