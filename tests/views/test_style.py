# SPDX-License-Identifier: Apache-2.0
"""Text that came from somebody else's file. Needs nothing."""

from __future__ import annotations

from harness.views.style import escape_unprintable


def test_no_character_of_a_file_steers_a_terminal() -> None:
    assert escape_unprintable("plain, caf\u00e9 \u4e2d") == "plain, caf\u00e9 \u4e2d"
    assert escape_unprintable("a\x1b[31mb\n::error::c\x9b2J\r\u202e") == r"a\x1b[31mb\n::error::c\x9b2J\r\u202e"
    assert escape_unprintable("two\nlines\x07", keep="\n") == "two\nlines\\x07"
