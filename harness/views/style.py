# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: colour or none, decided once from the stream and the environment, and no control characters."""

from __future__ import annotations

import os
from typing import NamedTuple, TextIO

from harness.printed_text import escape_unprintable

__all__ = ["Style", "escape_unprintable", "style_for"]

_CODES = {"": "", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


class Style(NamedTuple):
    """Paints text on a terminal with colour; leaves it unchanged elsewhere."""

    colour: bool = False

    def paint(self, text: str, colour: str, *, bold: bool = False) -> str:
        """The text in an ANSI colour; unchanged when colour is off."""
        codes = ";".join(code for code in ("1" if bold else "", _CODES[colour]) if code)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.colour and codes else text


def style_for(stream: TextIO) -> Style:
    """Colour on a terminal, unless NO_COLOR is set or TERM is dumb; FORCE_COLOR turns it on anywhere."""
    if os.environ.get("NO_COLOR"):
        return Style(False)
    if os.environ.get("FORCE_COLOR"):
        return Style(True)
    return Style(stream.isatty() and os.environ.get("TERM") != "dumb")
