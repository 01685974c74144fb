# SPDX-License-Identifier: Apache-2.0
"""The pages that people wrote stay short enough to be read."""

from __future__ import annotations

from tests.docs.word_count import LIMIT, count_words


def test_the_pages_have_at_most_45000_words() -> None:
    """Cut repetition, history, and measurements that a file in `benchmarks/results` has."""
    words = count_words()
    assert sum(words.values()) <= LIMIT, sorted(words.items(), key=lambda item: -item[1])[:8]
    assert "questions.md" in words
    assert not {"models.md", "spec-keys.md", "security-code-table.md"} & words.keys()
