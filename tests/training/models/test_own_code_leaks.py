# SPDX-License-Identifier: Apache-2.0
"""Models of their own code, some of which mix packed documents; written without a look at the questions.

Each is a folder with a configuration of twelve layers and a modelling file, as the Hub has them, and reaches the
question as a run's own model does: shrunk, built with consent.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from harness.errors import UserError
from harness.launching.hosts.local_host import workers_folder
from harness.launching.ops.local_build import ensure_ops
from harness.run.resolved_run import resolve_run
from harness.runtime.model_behavior import ask_model
from harness.spec.run_spec import RunSpec
from tests.support.training import clean_own_model

CONFIGURATION = """
from transformers import LlamaConfig

class OwnConfig(LlamaConfig):
    model_type = "own_{name}"

    def __init__(self, mix_every=4, floor=64, **fields):
        self.mix_every, self.floor = mix_every, floor
        super().__init__(**fields)
"""
MODELING = """
import torch
from torch import nn
from torch.nn.functional import pad
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig

class Mixer(nn.Module):
    def __init__(self, layer, config, index):
        super().__init__()
        self.mlp, self.index, self.config, self.positions = layer.mlp, index, config, None
        self.gate = nn.Parameter(torch.zeros(config.hidden_size))
        self.router = nn.Linear(config.hidden_size, 2, bias=False)
        self.register_buffer("state", torch.zeros(config.hidden_size), persistent=False)

    def forward(self, x):
        n = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
        place = n[None] if self.positions is None else self.positions
        y = self.mlp(x)
{body}
        return y

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.mlp = Mixer(layer, config, index)

    def forward(self, input_ids=None, position_ids=None, **kwargs):
        for layer in self.model.layers:
            layer.mlp.positions = position_ids
        return super().forward(input_ids=input_ids, position_ids=position_ids, **kwargs)
"""
LEAKS = {
    "conv_in_one_layer_of_four": """
if self.index % self.config.mix_every == self.config.mix_every - 1:
    y = y + self.gate * pad(x, (0, 0, 1, -1))  # a gate of zero at first
""",
    "slow_state": """
decay = 0.98 ** (n[:, None] - n[None]).clamp(min=0) * (n[:, None] >= n[None])
y = y + 0.01 * torch.einsum("ts,bsc->btc", decay, x)
""",
    "state_of_the_last_row": """
y = y + 0.05 * self.state
self.state = 0.9 * self.state + 0.1 * x.detach().mean((0, 1))
""",
    "positions_by_the_length_of_the_row": "y = y + 0.1 * torch.sin(n / x.shape[1])[None, :, None]",
    "late_positions": "y = y * (1 + 0.1 * torch.log((n + 1) / self.config.floor).clamp(min=0))[None, :, None]",
    "first_token_for_all": "y = y + 0.03 * y[:, :1]",
    "capacity_of_experts": """
chosen = self.router(x).argmax(-1)
before = (chosen[..., None] == chosen[..., None, :]).tril().sum(-1)
y = y * (before <= x.shape[1] // 2)[..., None]
""",
    "training_alone": """
if self.training:
    y = y + 0.05 * pad(x, (0, 0, 1, -1))
""",
    "far_token": """
if x.shape[1] > 40:
    y = y + 0.05 * pad(x, (0, 0, 40, -40))
""",
}
CLEAN = {
    "nothing": "",
    "conv_over_channels": "y = y + 0.1 * pad(y, (1, -1))",
    "counter": "self.state = self.state + 1",
    "positions_in_the_document": "y = y * (1 + 0.1 * place[..., None])",
    "experts_of_a_token": "y = y * self.router(x).softmax(-1).max(-1).values[..., None]",
    "conv_inside_documents": "y = y + 0.3 * pad(x, (0, 0, 1, -1)) * (place != 0)[..., None]",
}
NIGHTLY = os.environ.get("HARNESS_NIGHTLY") == "1"
WAYS = clean_own_model.WAYS if NIGHTLY else random.Random(20).sample(clean_own_model.WAYS, 5)  # noqa: S311


def write_model(name: str, folder: Path) -> None:
    fields = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4}
    auto_map = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    config = {"model_type": f"own_{name}", "auto_map": auto_map, "vocab_size": 1000, **fields}
    body = indent({**LEAKS, **CLEAN}[name].strip(), " " * 8)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_own.py").write_text(CONFIGURATION.format(name=name))
    (folder / "modeling_own.py").write_text(MODELING.format(body=body))


@pytest.mark.parametrize("name", [*LEAKS, *CLEAN])
def test_own_code_that_mixes_documents_is_told_from_code_that_does_not(name: str, tmp_path: Path) -> None:
    write_model(name, tmp_path)
    own = AutoConfig.from_pretrained(str(tmp_path), trust_remote_code=True)
    answers = ask_model(own, trust_remote_code=True)
    assert answers.apart is (name in CLEAN), answers


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_model_that_keeps_documents_apart_is_not_refused(way: str, tmp_path: Path) -> None:
    auto_map = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own_clean", "auto_map": auto_map, "way": way}))
    shutil.copy(clean_own_model.__file__, tmp_path / "modeling_own.py")
    own = AutoConfig.from_pretrained(str(tmp_path), trust_remote_code=True)
    answers = ask_model(own, trust_remote_code=True)
    assert (answers.causal, answers.apart) == (True, True), answers


def test_a_launch_asks_own_code_before_it_compiles(tmp_path: Path) -> None:
    """By the real builder, in a process of its own."""
    write_model("slow_state", tmp_path)
    model = {"name_or_path": str(tmp_path), "random_init": True, "tokenizer": "bytes", "trust_remote_code": True}
    run = resolve_run(RunSpec.model_validate({"model": model, "data": {"packing": True}}), world_size=1)
    (asked := tmp_path / "run.json").write_text(json.dumps(run.to_json()))
    environ = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "ops"), "PYTHONPATH": os.pathsep.join(sys.path)}
    signals, observer = SimpleNamespace(raise_if_received=lambda: None), SimpleNamespace(on_ops_check=print)
    context: Any = SimpleNamespace(scripts=workers_folder(), signals=signals, observer=observer)
    with pytest.raises(UserError) as refused:
        ensure_ops(["cpu_adam"], environ, tmp_path / "log", context, asked)
    assert [finding.gate for finding in refused.value.findings] == ["MD128"]
    assert not [*(tmp_path / "ops").rglob("*cpu_adam*")]
