# SPDX-License-Identifier: Apache-2.0
"""Products of degrees: what the gates accept trains as one plain process does, what they refuse DeepSpeed refuses too.

Three of the hundred that `benchmarks/degree_products.py` tries, about 20 s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.judge import Judge
from tests.support.training.degree_products import OPS, PRODUCTS, Product, draw_products, try_products
from tests.support.training.forked_ranks import ForkedRanks

FEW = (
    Product(2, 1, 2, 1, 1, "llama", 2, (4, 1), 320),
    Product(4, 1, 2, 2, 2, "llama", 1, (4, 2), 330),
    Product(4, 2, 1, 2, 1, "llama", 2, (4, 2), 320),
)
"""A tensor rank without attention; tensor x sequence; and a sequence degree in a pipeline, which is refused."""


def test_gates_harness_and_deepspeed_agree(forked: ForkedRanks, tmp_path: Path) -> None:
    judge = Judge(ops=OPS)
    try:
        answers = list(try_products(FEW, tmp_path, forked, judge))
    finally:
        judge.close()
    assert [(answer.kind, answer.text) for answer in answers if not answer.is_right] == []
    assert [answer.kind for answer in answers] == ["trains", "trains", "refused by both"]


@pytest.mark.parametrize("degree", ["pipeline", "tensor", "sequence", "data"])
def test_the_draw_has_every_degree_and_few_large_jobs(degree: str) -> None:
    products = draw_products()
    assert len({product.name for product in products}) == PRODUCTS
    assert sum(product.ranks == 8 for product in products) <= 14
    assert {getattr(product, degree) for product in products} >= {1, 2, 4}
