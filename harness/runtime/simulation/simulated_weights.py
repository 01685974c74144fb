# SPDX-License-Identifier: Apache-2.0
"""Pretrained weights without files: their names and shapes come from the model itself, and nothing is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from harness.runtime.models import pretrained
from harness.runtime.models.safetensors_reader import SafetensorsFiles

_OPEN_WEIGHTS = f"{pretrained.__name__}.open_safetensors"


class SimulatedWeights(SafetensorsFiles):
    """Safetensors files of a model that are nowhere. Reads leave the tensor as it is."""

    def read_into(self, name: str, out: torch.Tensor) -> None:  # noqa: ARG002
        """Check that there is such a tensor."""
        if name not in self.shapes:
            raise KeyError(name)


def list_weights(config: PreTrainedConfig, arguments: dict[str, Any]) -> SimulatedWeights:
    """Every parameter and persistent buffer of the model, as a file of this model would have them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, **arguments)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return SimulatedWeights({name: Path("simulated.safetensors") for name in shapes}, shapes)


@contextmanager
def simulated_weights(weights: SimulatedWeights) -> Iterator[None]:
    """In this context pretrained models are loaded from such files, at every ZeRO stage."""

    def from_pretrained(_: str, *, config: PreTrainedConfig, dtype: torch.dtype, **arguments: Any) -> Any:
        from transformers.initialization import no_init_weights

        for unused in ("revision", "output_loading_info", "ignore_mismatched_sizes"):
            arguments.pop(unused, None)
        with no_init_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, **arguments)
        return model, {"mismatched_keys": [], "missing_keys": []}

    with (
        patch(_OPEN_WEIGHTS, lambda _: weights),
        patch.object(AutoModelForCausalLM, "from_pretrained", from_pretrained),
    ):
        yield
