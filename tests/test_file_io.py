# SPDX-License-Identifier: Apache-2.0
"""Files that are read with a bound and replaced whole. Needs nothing."""

from __future__ import annotations

import errno
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.file_io import apply_umask, open_regular, parse_json, read_regular, replace_file, write_output_file


def test_only_a_regular_file_within_its_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"four")
    assert read_regular(file, 4) == b"four"
    assert errno_of(file, 3) == errno.EFBIG
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_regular(link, 4) == b"four"
    assert errno_of(link, 4, follow=False) == errno.ELOOP
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero", "."):
        assert errno_of(tmp_path / name, 4) == errno.EINVAL, name
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        assert errno_of(tmp_path / "socket", 4) == errno.ENXIO
    assert errno_of(tmp_path / "missing", 4) == errno.ENOENT


def test_a_file_that_is_read_piece_by_piece_is_regular_too(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\nb\n")
    with open_regular(tmp_path / "lines") as file:
        assert list(file) == [b"a\n", b"b\n"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "pipe")


@pytest.mark.parametrize("text", ["[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, "[" * 10**5, b"[" * 10**5, "{"])
def test_json_that_who_walks_through_it_would_not_survive_is_none(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_json(text)


def test_json_of_many_brackets_side_by_side_is_read() -> None:
    assert parse_json("[" + ",".join(["[1]"] * 1000) + "]") == [[1]] * 1000
    assert parse_json(b"[" * 64 + b"]" * 64) != []


def errno_of(path: Path, limit: int, *, follow: bool = True) -> int | None:
    with pytest.raises(OSError, match=r"\S") as caught:
        read_regular(path, limit, follow=follow)
    return caught.value.errno


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


def test_output_goes_through_a_pipe_that_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text, encoding="utf-8")
        write_output_file(pipe, "text\n")
        assert read.result(10) == "text\n"
    assert pipe.is_fifo()
    write_output_file(tmp_path / "file", "text\n")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "text\n"


def test_a_folder_gets_the_permissions_of_new_files(tmp_path: Path) -> None:
    folder, file, secret = tmp_path / "export", tmp_path / "export" / "model", tmp_path / "secret"
    folder.mkdir(mode=0o700)
    file.touch(mode=0o600)
    secret.touch(mode=0o600)
    (folder / "link").symlink_to(secret)
    before = os.umask(0o027)
    try:
        apply_umask(folder)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, file, secret)] == [0o750, 0o640, 0o600]
