# SPDX-License-Identifier: Apache-2.0
"""The lists of a draft for a new release, on made-up sources."""

from __future__ import annotations

from tests.releases import draft

OLD = {
    "runtime/config.py": "A_DEFAULT = 1\nclass Block:\n    ratio: float = 0.5\n    gone: bool = False\n",
    "runtime/engine.py": "x = 1\ndef f():\n    raise ValueError('too small')\n",
}
NEW = {
    "runtime/config.py": "A_DEFAULT = 1\nclass Block:\n    ratio: float = 0.9\n    fresh: int = 3\n",
    "runtime/engine.py": "x = 2\ndef f():\n    raise ValueError('too large')\n",
}


def test_fields_and_constants_of_configuration_files() -> None:
    assert draft._lines(draft._values(OLD), draft._values(NEW)) == [
        "new: `runtime/config.py` Block.fresh `3`",
        "gone: `runtime/config.py` Block.gone `False`",
        "changed: `runtime/config.py` Block.ratio `0.5` -> `0.9`",
    ]


def test_messages() -> None:
    assert draft._lines(draft._messages(OLD), draft._messages(NEW)) == [
        "new: `runtime/engine.py` f: ValueError: too large",
        "gone: `runtime/engine.py` f: ValueError: too small",
    ]


def test_gates_that_cite_a_changed_file() -> None:
    lines = draft._gates(OLD, NEW)
    assert any(line.startswith("ZR027 ") for line in lines)
    assert all("runtime/config.py" in line or "runtime/engine.py" in line for line in lines)
