# SPDX-License-Identifier: Apache-2.0
"""Rows arrive whole: with the device held back, the ids that a step computes with are those of its position."""

from __future__ import annotations

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.device import delay_stream, synchronize

VOCABULARY = 60_000


def measure(scene: Scene) -> Figures:
    """Steps whose rows are wrong, of prefetched and pinned rows that were copied behind held-back work."""
    import numpy as np
    import torch

    from harness.runtime.dataset.batch_prefetch import BatchPrefetcher
    from harness.runtime.dataset.sampler import TrainData
    from harness.runtime.dataset.token_dataset import BlockDataset, TokenDataset
    from harness.runtime.micro_batch import BatchGeometry
    from harness.runtime.train_state import DataPosition

    length, steps = scene.pick(2048, 16), scene.pick(30, 6)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 400 * length, dtype=np.uint16)
    data = TrainData(TokenDataset((BlockDataset(tokens, length),), length), BatchGeometry(2, 2, 1), 0, 3, True)
    device = scene.distributed.device
    prefetcher, position, on_device, wanted = BatchPrefetcher(data, device), DataPosition(), [], []
    is_pinned = True
    for _ in range(steps):
        batch = prefetcher.next_batch(position)
        wanted += [micro.input_ids.clone() for micro in data.batch_at(position).micro_batches]
        delay_stream()
        for micro in batch.micro_batches:
            is_pinned &= device.type == "cpu" or micro.input_ids.is_pinned()
            on_device.append(micro.to_model_inputs(device)["input_ids"].clone())
        position = batch.next_position
        del batch
    synchronize()
    prefetcher.close()
    wrong = [n for n, (a, b) in enumerate(zip(on_device, wanted, strict=True)) if not torch.equal(a.cpu(), b)]
    found: Figures = {"micro_batches": len(wanted), "wrong": wrong, "pinned": bool(is_pinned)}
    return found


def judge(figures: Figures, _rehearse: bool) -> list[str]:
    """None is wrong, and the rows were in pinned memory."""
    reasons = []
    if figures["wrong"]:
        reasons.append(f"rows of micro-batches {figures['wrong'][:5]} are not those of their position")
    if not figures["pinned"]:
        reasons.append("rows for the device are not in pinned memory")
    if figures["micro_batches"] < 10:
        reasons.append(f"{figures['micro_batches']} micro-batches are too few")
    return reasons
