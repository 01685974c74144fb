# SPDX-License-Identifier: Apache-2.0
"""The states of a module of the user's own on the screen of a plan. Counts nothing itself."""

from __future__ import annotations

from harness.plan.own_states import OwnStates
from harness.units import format_trainable
from harness.views.plan_numbers import format_size


def format_own_states(states: OwnStates) -> list[str]:
    """A line each for the parameters, their states, DeepSpeed's buffers, what is not known, and the rows."""
    count = format_trainable(states.num_trainable, states.num_parameters)
    trained = "" if states.num_trainable == states.num_parameters else f", {count} trained"
    host = states.bytes_of("host") * states.ranks_per_host
    sizes = [f"{format_size(states.bytes_of('gpu'))} on the device of a rank"]
    sizes += [f"{format_size(host)} on a host"] if host else []
    nvme = states.bytes_of("nvme") * states.ranks_per_host
    sizes += [f"{format_size(nvme)} on a host's NVMe"] if nvme else []
    return [
        f"Module     {states.num_parameters:,} parameters{trained}",
        f"States     {', '.join(sizes)}: weights, gradients, optimizer",
        f"Buffers    {format_size(states.bytes_of('gpu', buffers=True))} on the device of a rank, at most",
        "Other      activations are not known",
        f"Rows       {'not known' if states.num_rows is None else f'{states.num_rows:,} for training'}",
    ]
