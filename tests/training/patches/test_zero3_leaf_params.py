# SPDX-License-Identifier: Apache-2.0
"""The cached parameters of a leaf module equal those of a walk through it. Needs deepspeed; seconds."""

from __future__ import annotations

from typing import Any

import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator
import pytest
import torch
from deepspeed.utils.z3_leaf_module import set_z3_leaf_module

from harness.patches.zero3_leaf_params import leaf_parameter_cache


class Layer(torch.nn.Module):
    """Two modules of which one is inside another, and a parameter that is used in both."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[tuple[str, torch.nn.Parameter]] = []
        self.first = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        self.second = torch.nn.Linear(2, 2, bias=False)
        self.second.weight = self.first[0].weight

    def ds_external_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """As DeepSpeed gives every module one."""
        return self.outside


def listed(module: Any, recurse: bool = True) -> list[int]:
    return [id(parameter) for parameter in coordinator.iter_params(module, recurse=recurse)]


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("recurse", [True, False])
def test_the_list_is_that_of_a_walk(leaf: bool, recurse: bool) -> None:
    layer = Layer()
    set_z3_leaf_module(layer, leaf)
    walked = listed(layer, recurse)
    with leaf_parameter_cache():
        assert listed(layer, recurse) == walked
        layer.outside.append(("late", torch.nn.Parameter(torch.ones(1))))
        assert listed(layer, recurse) == [*walked, id(layer.outside[0][1])]
        assert listed(layer, recurse) == [*walked, id(layer.outside[0][1])]
