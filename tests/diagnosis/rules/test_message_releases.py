# SPDX-License-Identifier: Apache-2.0
"""The releases that say a message. Needs nothing; seconds."""

from __future__ import annotations

from harness.diagnosis.catalogue import all_causes, all_rows, load_releases, releases_of
from harness.facts.deepspeed_version import parse_version


def test_every_pattern_with_releases_is_one_of_a_row() -> None:
    """A pattern that was changed or removed: `python benchmarks/log_catalogue.py --write`."""
    patterns = {row.signature.pattern for row in all_rows()}
    patterns |= {signature.pattern for cause in all_causes() for signature in cause.signatures}
    assert sorted(load_releases().keys() - patterns) == []


def test_the_first_release_is_not_newer_than_the_last() -> None:
    for first, last in load_releases().values():
        assert (0, 14, 5) <= parse_version(first) <= parse_version(last) <= (0, 19, 8)


def test_releases_of_a_message() -> None:
    assert releases_of("Muon and reduce scatter cannot be used together") == ("0.18.9", "0.19.8")
    assert releases_of("no such pattern") is None
