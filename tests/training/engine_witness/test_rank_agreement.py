# SPDX-License-Identifier: Apache-2.0
"""The witness's collectives go through the function that its caller times them with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from harness.engine_witness.rank_agreement import RankAgreement


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_each_collective_is_called_by_time_call() -> None:
    called = []

    def time_call(function, *args, **kwargs):
        called.append(function.__name__)
        return function(*args, **kwargs)

    agreement = RankAgreement(None, torch.device("cpu"), torch.float64, time_call)
    assert agreement.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert agreement.maximum([3.0, 4.0], everywhere=True) == [3.0, 4.0]
    assert agreement.gather("a") == ["a"]
    assert called == ["all_reduce", "all_reduce", "all_gather_object"]


@pytest.mark.usefixtures("group_of_one")
def test_without_it_they_are_called_directly() -> None:
    agreement = RankAgreement(None, torch.device("cpu"), torch.float64)
    assert agreement.sum(torch.tensor([1.0])).tolist() == [1.0]
