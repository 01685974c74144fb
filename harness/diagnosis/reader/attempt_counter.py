# SPDX-License-Identifier: Apache-2.0
"""Lines in which launchers start the ranks again -> the attempt that a line belongs to."""

from __future__ import annotations

import re

from harness.diagnosis.reader.line_prefix import ParsedLine

_RESTART = re.compile(
    r"(?<!\d)(?P<left>\d{1,6})/(?P<all>\d{1,6}) attempts left; *will restart|^\s*restart_count=(?P<count>\d{1,6})|"
    r"restarting in .{0,80}, (?P<ours>\d{1,6}) left$"
)


class AttemptCounter:
    """`current` is the attempt of the line that was read, from 0; `last` the highest of all logs."""

    def __init__(self) -> None:
        self.current = self.last = 0
        self._mapped_hosts: set[str] = set()

    def start_log(self, attempt: int) -> None:
        """Another log starts, which is of this attempt by its name."""
        self.current, self._mapped_hosts = attempt, set()
        self.last = max(self.last, attempt)

    def read_line(self, parsed_line: ParsedLine) -> None:
        """Does the launcher say that it starts the ranks again? A host's second table of ranks says so too."""
        text, attempt = parsed_line.text, self.current
        if "global_rank_mapping" in text:
            attempt += parsed_line.host in self._mapped_hosts
            self._mapped_hosts = (self._mapped_hosts if attempt == self.current else set()) | {parsed_line.host}
        elif "estart" in text and (match := _RESTART.search(text)):
            if match["count"]:
                attempt = max(attempt, int(match["count"]))
            elif match["all"]:
                attempt = max(attempt, int(match["all"]) - int(match["left"]) + 1)
            else:
                attempt += 1
        self.current = attempt
        self.last = max(self.last, attempt)
