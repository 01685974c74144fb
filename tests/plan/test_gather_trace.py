# SPDX-License-Identifier: Apache-2.0
"""The replay of DeepSpeed's gathers, by hand and as the simulated engine held them. Needs nothing; milliseconds."""

from __future__ import annotations

import pytest

from harness.plan.memory.gather_trace import GatherSettings, ModelModules, replay_gathers

LAYER, HEAD, NORM = 855_654_400, 128_256 * 8192, 8192
LLAMA_70B = ModelModules((HEAD,), ((LAYER,),), 80, (NORM,), HEAD, tied=False)


def gathered(
    reuse: int, prefetch: int, live: int = 10**12, *, leaf: bool = True, recomputes: bool = True
) -> tuple[int, int]:
    """At the loss, and while the last layer is differentiated."""
    peaks = replay_gathers(LLAMA_70B, GatherSettings(reuse, prefetch, live, leaf, recomputes))
    return peaks.loss, dict(peaks.backward_layer)[80]


@pytest.mark.parametrize(
    ("reuse", "prefetch", "live", "loss", "layer"),
    [
        (0, 0, 10**12, HEAD, LAYER),
        (2 * LAYER, 0, 10**12, HEAD + LAYER, LAYER),  # the last layer stays for its backward pass
        (2 * LAYER, LAYER, 2 * LAYER, HEAD + LAYER, 3 * LAYER),  # no room to prefetch next to the head
    ],
)  # fmt: skip
def test_of_70b_by_hand(reuse: int, prefetch: int, live: int, loss: int, layer: int) -> None:
    at_loss, at_layer = gathered(reuse, prefetch, live)
    assert at_loss == pytest.approx(loss, abs=2 * NORM)
    assert at_layer == pytest.approx(layer, abs=2 * NORM)


def test_as_the_simulated_engine_held_it() -> None:
    """3.551 and 4.781 GiB in bf16 (`benchmarks/simulate.py llama-3.1-70b-zero3-cpu-offload`): the norm and the layer
    before the last are gathered in one buffer, which stays next to the copies until that layer runs.
    """
    assert [round(2 * numel / 2**30, 2) for numel in gathered(2 * LAYER, LAYER, 2 * LAYER)] == [3.55, 4.78]


def test_all_stays_gathered_within_a_long_reuse_distance() -> None:
    peaks = replay_gathers(LLAMA_70B, GatherSettings(10**12, 0, 10**12, False, True))
    assert peaks.loss == 80 * LAYER + 2 * HEAD + NORM


def test_a_tied_head_is_the_embedding() -> None:
    peaks = replay_gathers(LLAMA_70B._replace(tied=True), GatherSettings(10**12, 0, 10**12, False, True))
    assert peaks.loss == 80 * LAYER + HEAD + NORM
