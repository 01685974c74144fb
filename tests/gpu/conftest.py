# SPDX-License-Identifier: Apache-2.0
"""Everything below is in the GPU tier, the only one that sees this machine's GPUs: `pytest -m gpu`."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu
"""Read by `tests/conftest.py`, for every module of this folder."""


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip where torch can use no GPU."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use, and `pytest -m gpu`")
