# SPDX-License-Identifier: Apache-2.0
"""Folders of data whose settings lead out of them, or whose files unpack to far more than they are."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import UserError
from harness.runtime.dataset.hub import load_hub_dataset
from harness.spec.sections.data_spec import DataSource
from tests.security.attempts import Attempt
from tests.security.test_data_files import long_text, pa, write_parquet

pytestmark = pytest.mark.training


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data. `datasets` is never reached by it."""
    monkeypatch.setattr("harness.runtime.dataset.hub._load_table", lambda *_, **__: SimpleNamespace(_fingerprint="x"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("hello\n")
    return tmp_path / "data"


def load(folder: Path) -> Any:
    return load_hub_dataset(DataSource(path=str(folder)), "data.train", streaming=False, hash_file=lambda _: "x")


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(
    "name", ["/home/me/.ssh/id_rsa", "../../secret.txt", "https://evil.example/x.txt", "ftp://evil.example/x.txt",
             "file:/etc/passwd", "zip://x.txt::https://evil.example/x.zip", "~/x.txt"],
)  # fmt: skip
@Attempt(
    "I130",
    "`README.md` of a folder of data names files outside of it, or an address",
    "`datasets` read the file, and connected",
    "MD116 before `datasets` looks at the folder",
)
def test_settings_of_a_folder(folder: Path, name: str, file: str) -> None:
    for setting in (f"data_files: '{name}'", f"data_files: [{{split: train, path: '{name}'}}]", f"data_dir: '{name}'"):
        text = f"configs:\n- config_name: default\n  {setting}\n"
        (folder / file).write_text(f"---\n{text}---\n" if file.endswith("md") else text)
        with pytest.raises(UserError) as refused:
            load(folder)
        assert refused.value.findings[0].gate == "MD116"
        assert "outside of the folder" in refused.value.findings[0].notes[0]
    text = "configs:\n- config_name: default\n  data_files: 'a*.txt'\n"
    (folder / file).write_text(f"---\n{text}---\n" if file.endswith("md") else text)
    assert load(folder).size == 0


@Attempt(
    "I131",
    "`README.md` of a folder of data has 30,000 brackets",
    "`datasets` hands them to libyaml, whose composer dies of SIGSEGV",
    "MD116",
)
def test_nested_settings(folder: Path) -> None:
    (folder / "README.md").write_text("---\nconfigs: " + "[" * 30_000 + "\n---\n")
    with pytest.raises(UserError) as refused:
        load(folder)
    assert refused.value.findings[0].gate == "MD116"


@Attempt(
    "I132",
    "a folder of data with a gzip of 1 MB that unpacks to 1 GB, or a Parquet file that does",
    "`datasets` unpacked it to the disk, and read the other whole",
    "MD116 after a hundred times its size and 64 MiB",
)
def test_packed_files_of_a_folder(folder: Path) -> None:
    assert load(folder).size == 0
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 1000))
    assert load(folder).size == 0
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"\n" * (80 << 20)))
    with pytest.raises(UserError) as refused:
        load(folder)
    assert "b.jsonl.gz" in refused.value.findings[0].notes[0]
    (folder / "b.jsonl.gz").unlink()
    write_parquet(folder / "c.parquet", pa.array([long_text()]), use_dictionary=False)
    with pytest.raises(UserError) as refused:
        load(folder)
    assert "c.parquet" in refused.value.findings[0].notes[0]
