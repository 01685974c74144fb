# SPDX-License-Identifier: Apache-2.0
"""The cache of prepared data: what it depends on, and what becomes of runs that are killed or meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.runtime.dataset.cache import cache_root, file_sha256, prepare_or_reuse, read_cache
from harness.runtime.tokenizer import byte_tokenizer
from tests.support.training.data_helpers import TOKENIZER, chat, lines, only, run_of


def folder_of(tmp_path: Path, tokenizer: Any = TOKENIZER, seed: int = 42, **data: Any) -> tuple[str, bool]:
    run = run_of(tmp_path, **data)
    if seed != 42:
        spec = run.spec.model_copy(update={"train": run.spec.train.model_copy(update={"seed": seed})})
        run = type(run)(spec, run.name, run.cluster, run.parallel_dims, run.batch)
    place, _, hit = prepare_or_reuse(run, tokenizer, show_progress=False)
    return place.name, hit


def test_every_input_of_the_hash_makes_another_folder_and_nothing_else_does(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [chat("q", "a" * 20, "r", "b")] * 4)
    base: dict[str, Any] = {"train": file, "max_length": 64}
    first, hit = folder_of(tmp_path, **base)
    assert not hit
    assert folder_of(tmp_path, **base) == (first, True)
    os.utime(file, (1, 1))
    (tmp_path / "b.jsonl").write_bytes(Path(file).read_bytes())
    same: list[dict[str, Any]] = [
        {},
        {"train": str(tmp_path / "b.jsonl")},
        {"shuffle": False},
        {"group_by_length": False},
        {"num_proc": 1},
        {"pad_to_multiple_of": 8},
    ]
    assert {folder_of(tmp_path, **{**base, **more}) for more in same} == {(first, True)}
    other: list[dict[str, Any]] = [
        {"max_length": 48},
        {"packing": True},
        {"assistant_only_loss": False},
        {"excess_length_strategy": "split"},
        {"eval_fraction": 0.5},
        {"eval": file},
        {"on_bad_record": "skip"},
        {"train": [{"path": file, "weight": 1.0}]},
    ]
    names = [folder_of(tmp_path, **{**base, **more})[0] for more in other]
    names.append(folder_of(tmp_path, seed=1, **base)[0])
    template = byte_tokenizer()
    template.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    names.append(folder_of(tmp_path, template, **base)[0])
    vocabulary = byte_tokenizer()
    vocabulary.add_tokens(["aa"])
    names.append(folder_of(tmp_path, vocabulary, **base)[0])
    with Path(file).open("a") as out:
        out.write(json.dumps(chat("q", "c")) + "\n")
    names.append(folder_of(tmp_path, **base)[0])
    assert len({first, *names}) == len(names) + 1


def test_a_hash_is_remembered_while_the_file_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_text("abc")
    first = file_sha256(file, tmp_path)
    monkeypatch.setattr("harness.runtime.dataset.cache._hash_bytes", lambda _: "read again".ljust(64))
    assert file_sha256(file, tmp_path) == first
    file.write_text("abcd")
    assert file_sha256(file, tmp_path).startswith("read again")


@pytest.mark.parametrize("harm", ["cut off", "gone", "no meta"])
def test_a_damaged_folder_is_prepared_again(tmp_path: Path, harm: str) -> None:
    file = lines(tmp_path / "a.jsonl", [{"text": "abc" * 30}])
    run = run_of(tmp_path, train=file, eval_fraction=0.0)
    place, found, _ = prepare_or_reuse(run, TOKENIZER, show_progress=False)
    target = place / ("meta.json" if harm == "no meta" else "train.npy")
    target.write_bytes(target.read_bytes()[:-2]) if harm == "cut off" else target.unlink()
    assert read_cache(place) is None
    again, mended, hit = prepare_or_reuse(run, TOKENIZER, show_progress=False)
    assert (again, mended, hit) == (place, found, False)
    assert read_cache(place) == found


KILLED = """
import os, sys, threading, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.support.training.data_helpers import TOKENIZER, run_of
from harness.runtime.dataset import cache, preparation
cache.prepare_data = lambda *a, **k: (preparation.prepare_data(*a, **k), os._exit(9))
cache.prepare_or_reuse(run_of(Path({folder!r}), train={file!r}), TOKENIZER, show_progress=False)
"""


def test_a_killed_preparation_leaves_nothing_that_counts(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [{"text": "abc " * 30}] * 20)
    code = KILLED.format(root=str(Path(__file__).parents[3]), folder=str(tmp_path), file=file)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    left = [p.name for p in (tmp_path / "cache").iterdir() if p.name.endswith(".tmp")]
    assert left
    _, _, hit = prepare_or_reuse(run_of(tmp_path, train=file), TOKENIZER, show_progress=False)
    assert not hit
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.endswith(".tmp")]


def test_two_runs_at_once_share_one_preparation(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [{"text": f"{i} " * 300} for i in range(300)])
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(prepare_or_reuse, run_of(tmp_path, train=file), byte_tokenizer(), show_progress=False)
            for _ in range(3)
        ]
        done = [run.result() for run in runs]
    assert len({str(place) for place, _, _ in done}) == 1
    assert sorted(hit for _, _, hit in done) == [False, True, True]


def test_a_cache_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as refused:
        prepare_or_reuse(
            run_of(tmp_path, train="builtin:python-docs", cache_dir=str(tmp_path / "file" / "x")), TOKENIZER
        )
    assert only(refused).gate == "MD129"


def test_the_cache_is_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = run_of(tmp_path).spec.data.model_copy(update={"cache_dir": None})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root(data) == tmp_path / "harness" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root(data) == Path.home() / ".cache" / "harness" / "data"
