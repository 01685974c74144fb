# SPDX-License-Identifier: Apache-2.0
"""Lists of cores are read as the installed launcher reads them. Needs deepspeed; seconds."""

from __future__ import annotations

import pytest
from deepspeed.utils.numa import parse_range_list

from harness.gates.rules.core_binding import parse_core_list

GOOD = ("0", "0-3", "0,2,4", "0-1,8-9", "5-5", "0,2-4,6")
BAD = ("", "a", "0-", "-3", "3-1", "0-1,1-3", "4,2", "0-1-2", "0,,2", "0;2")


@pytest.mark.parametrize("text", GOOD)
def test_the_same_cores(text: str) -> None:
    assert parse_core_list(text) == parse_range_list(text)


@pytest.mark.parametrize("text", BAD)
def test_what_the_launcher_refuses_is_refused(text: str) -> None:
    for read in (parse_core_list, parse_range_list):
        with pytest.raises(ValueError):  # noqa: PT011  (the launcher's own words vary)
            read(text)


@pytest.mark.parametrize("text", ["0-99999999999", "0-70000", "9" * 5000])
def test_a_slip_is_not_counted_out(text: str) -> None:
    """The launcher would, for minutes or until memory ends."""
    with pytest.raises(ValueError, match="no host has"):
        parse_core_list(text)
