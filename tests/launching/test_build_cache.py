# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled ops on a real file system. Needs nothing; milliseconds."""

from harness.launching.ops.build_cache import find_stale_locks


def test_a_lock_is_stale_when_nobody_holds_it(tmp_path):
    held, left = tmp_path / "cpu_adam" / "lock", tmp_path / "py311_cpu" / "fused_adam" / "lock"
    for lock in (held, left):
        lock.parent.mkdir(parents=True)
        lock.write_text("")
    with held.open():
        assert find_stale_locks(tmp_path) == [left]
        assert find_stale_locks(tmp_path, ["cpu_adam"]) == []
    assert find_stale_locks(tmp_path, ["cpu_adam"]) == [held]
