# SPDX-License-Identifier: Apache-2.0
"""Prefetched rows for a device are in pinned memory, which a CPU does not have."""

from __future__ import annotations

import numpy as np
import torch

from harness.runtime.dataset.batch_prefetch import BatchPrefetcher
from harness.runtime.dataset.sampler import TrainData
from harness.runtime.dataset.token_dataset import BlockDataset, TokenDataset
from harness.runtime.micro_batch import BatchGeometry
from harness.runtime.train_state import DataPosition


def test_for_a_device_the_rows_are_pinned() -> None:
    tokens = np.repeat(np.arange(22), 4).astype(np.uint16)
    data = TrainData(TokenDataset((BlockDataset(tokens, 4),), 4), BatchGeometry(2, 2, 1), 0, 3, True)
    prefetcher = BatchPrefetcher(data, torch.device("cuda", 0))
    batch = prefetcher.next_batch(DataPosition()).micro_batches[0]
    assert batch.input_ids.is_pinned()
    assert batch.labels is batch.input_ids
    prefetcher.close()
