# SPDX-License-Identifier: Apache-2.0
"""The limit on locked memory stops a launch whose buffers DeepSpeed's own allocator would pin. Needs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from harness.hostinfo import machine
from harness.launching.setup.launch_checks import check_locked_memory
from harness.spec.pinned_memory import pins_natively
from harness.spec.sections.zero_spec import ZeroSpec

OFFLOADED = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
NATIVE = {**OFFLOADED, "pin_memory_backend": "native"}


@pytest.mark.parametrize(
    ("zero", "env", "expected"),
    [
        (OFFLOADED, {}, False),
        (NATIVE, {}, True),
        (OFFLOADED, {"DS_PIN_MEMORY_BACKEND": " Native"}, True),
        (NATIVE, {"DS_PIN_MEMORY_BACKEND": "torch"}, False),
    ],
    ids=["default", "key", "variable", "variable over key"],
)
def test_who_pins(zero: dict[str, Any], env: dict[str, str], expected: bool) -> None:
    assert pins_natively(ZeroSpec.model_validate(zero), env) is expected


@pytest.mark.parametrize(
    ("zero", "limit", "ranks", "found"),
    [
        (NATIVE, 8 << 20, 2, ["EN024"]),
        (NATIVE, None, 2, []),
        (NATIVE, 8 << 20, None, []),
        (OFFLOADED, 8 << 20, 2, []),
        ({"stage": 3, "pin_memory_backend": "native"}, 8 << 20, 2, []),
    ],
    ids=["limited", "no limit", "ranks elsewhere", "torch", "nothing pinned"],
)
def test_a_limit_is_an_error(
    zero: dict[str, Any], limit: int | None, ranks: int | None, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memlock_limit", lambda: limit)
    assert [finding.gate for finding in check_locked_memory(ZeroSpec.model_validate(zero), {}, ranks)] == found


@pytest.mark.parametrize(
    ("capabilities", "users", "limit"),
    [
        ("000001ffffffffff", "0 0 4294967295", None),
        ("000001ffffffbfff", "0 0 4294967295", 65536),
        ("000001ffffffffff", "0 1000 1", 65536),
        ("0000000000000000", "0 0 4294967295", 65536),
    ],
    ids=["capable", "without the capability", "in a user namespace", "no root"],
)
def test_who_may_exceed_the_limit(
    capabilities: str, users: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/proc/self/status": f"Name:\tx\nCapEff:\t{capabilities}\n", "/proc/self/uid_map": f"{users}\n"}
    monkeypatch.setattr(machine, "_read_text", lambda path: files[path])
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (65536, 65536))
    assert machine.memlock_limit() == limit
