# SPDX-License-Identifier: Apache-2.0
"""The reference of preference training: computed once, resumed after a kill, and checked before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.runtime.objectives import reference_cache
from harness.runtime.objectives.reference_cache import compute_reference, reference_key, split_rows


class OneRank:
    """A process group of one."""

    rank, world_size, is_main_process = 0, 1, True

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def any_rank(self, flag: bool) -> bool:
        return flag


class Model:
    """Counts the micro-batches that it is asked about; `killed_at` raises at one of them."""

    def __init__(self, scale: float = 1.0, killed_at: int | None = None) -> None:
        self.calls, self._scale, self._killed_at = 0, scale, killed_at

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        if self.calls == self._killed_at:
            raise KeyboardInterrupt
        self.calls += 1
        return np.stack([indices / 3, -indices], axis=1).astype(np.float32) * np.float32(self._scale)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_cache, "_BLOCK_MICRO_BATCHES", 2)


ROWS = 11
MICRO_BATCHES = split_rows(np.array([4, 2, 9, 0, 7, 1, 3]), ROWS, 2)
EXPECTED = Model()(np.arange(ROWS))


def reference(folder: Path, model: Model) -> np.ndarray:
    return compute_reference(folder, MICRO_BATCHES, 2, model, OneRank())  # type: ignore[arg-type]


def test_every_row_is_in_one_micro_batch_those_of_the_epoch_first() -> None:
    assert [part.tolist() for part in MICRO_BATCHES[:3]] == [[4, 2], [9, 0], [7, 1]]
    assert sorted(np.concatenate(MICRO_BATCHES).tolist()) == list(range(ROWS))


def test_a_second_run_asks_about_one_micro_batch_alone(tmp_path: Path) -> None:
    assert np.array_equal(reference(tmp_path, Model()), EXPECTED)
    again = Model()
    assert np.array_equal(reference(tmp_path, again), EXPECTED)
    assert again.calls == 1


def test_a_killed_computation_goes_on_after_its_last_block(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        reference(tmp_path, Model(killed_at=5))
    rest = Model()
    assert np.array_equal(reference(tmp_path, rest), EXPECTED)
    assert rest.calls == 1 + len(MICRO_BATCHES) - 4  # one to compare, and what the blocks of two do not have


def test_a_damaged_block_is_computed_again(tmp_path: Path) -> None:
    reference(tmp_path, Model())
    block = sorted(tmp_path.iterdir())[1]
    block.write_text(block.read_text().replace("-", "", 1))
    model = Model()
    assert np.array_equal(reference(tmp_path, model), EXPECTED)
    assert model.calls == 1 + 2


def test_another_model_under_the_same_name_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference(tmp_path, Model(scale=2.0))
    assert np.array_equal(reference(tmp_path, Model()), EXPECTED)
    assert "computed again" in capsys.readouterr().err


def test_the_key_follows_each_fact() -> None:
    facts = {"model": "a", "rows": "b", "packages": {"torch": "2"}}
    assert reference_key(facts) == reference_key(dict(reversed(facts.items())))
    assert reference_key(facts) != reference_key({**facts, "packages": {"torch": "3"}})
