"""Files that are replaced whole. Needs nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.files import replace_file


def test_many_who_replace_one_file_at_once_do_not_meet(tmp_path: Path) -> None:
    file = tmp_path / "note"
    texts = [f"{i}" * 5000 for i in range(8)]

    def often(text: str) -> None:
        for _ in range(100):
            replace_file(file, text, durable=False)
            assert file.read_text(encoding="utf-8") in texts

    with ThreadPoolExecutor(len(texts)) as pool:
        for done in [pool.submit(often, text) for text in texts]:
            done.result()
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
