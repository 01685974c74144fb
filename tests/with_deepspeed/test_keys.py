"""Our table of DeepSpeed's keys against the installed DeepSpeed's own models: a new release shows up here."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import get_args, get_origin

import pytest

from harness.facts.deepspeed import installed_version, parse_version
from harness.facts.deepspeed_keys import block

MODELS = {
    "zero_optimization": "deepspeed.runtime.zero.config:DeepSpeedZeroConfig",
    "zero_optimization.offload_optimizer": "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadOptimizerConfig",
    "zero_optimization.offload_param": "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadParamConfig",
    "zero_optimization.leaf_module": "deepspeed.runtime.zero.leaf_module_config:DeepSpeedZeroLeafModuleConfig",
    "zero_optimization.zenflow": "deepspeed.runtime.zenflow.zenflow_config:ZenFlowConfig",
    "bf16": "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    "fp16": "deepspeed.runtime.precision_config:DeepSpeedFP16Config",
    "tensor_parallel": "deepspeed.runtime.tensor_parallel.config:TPTrainingConfig",
    "compile": "deepspeed.compile.config:CompileConfig",
    "hybrid_engine": "deepspeed.runtime.config:HybridEngineConfig",
    "comms_logger": "deepspeed.comm.config:CommsLoggerConfig",
    "tensorboard": "deepspeed.monitor.config:TensorBoardConfig",
    "wandb": "deepspeed.monitor.config:WandbConfig",
    "csv_monitor": "deepspeed.monitor.config:CSVConfig",
    "comet": "deepspeed.monitor.config:CometConfig",
}
TYPES = {bool: "bool", int: "int", float: "number", str: "str", Path: "str", list: "list"}


def model(path):
    module, _, name = MODELS[path].partition(":")
    return getattr(importlib.import_module(module), name)


def current(path):
    version = parse_version(installed_version())
    return {k: v for k, v in block(path).items() if v.gone is None and (v.since is None or v.since <= version)}


@pytest.mark.parametrize("path", MODELS)
def test_every_field_is_known_and_no_other(path):
    theirs = {field.alias or name for name, field in model(path).model_fields.items()}
    theirs |= {name for name, field in model(path).model_fields.items() if field.alias}
    ours = set(current(path))
    if path == "tensor_parallel":
        theirs -= {"tensor_parallel", "replace_with_kernel_inject"}  # reached as `tp` and `kernel_inject`
    assert ours == theirs


@pytest.mark.parametrize("path", MODELS)
def test_the_types_are_the_fields_types(path):
    for name, field in model(path).model_fields.items():
        key = current(path).get(field.alias or name)
        if key is None or key.type in ("any", "block", "dict"):
            continue
        parts = (field.annotation, *get_args(field.annotation))
        plain = [t for t in (get_origin(p) or p for p in parts) if t in TYPES]
        if plain:
            assert TYPES[plain[0]] == key.type, name
        assert key.nullable == (type(None) in get_args(field.annotation)), name


@pytest.mark.parametrize("name", [k.name for k in block("").values() if k.gone and k.type in ("dict", "any")])
def test_a_key_that_is_gone_is_refused(name):
    from deepspeed.runtime.config import DeepSpeedConfig

    with pytest.raises(Exception, match="removed"):
        DeepSpeedConfig({"train_batch_size": 1, name: {}})


def recipes():
    return sorted((Path(__file__).parents[2] / "ds_configs").glob("*.json"))


class Ranks:
    """A model-parallel unit as DeepSpeed takes one: says how many data-parallel ranks there would be."""

    def __init__(self, count):
        self.count = count

    def get_data_parallel_world_size(self):
        return self.count


@pytest.mark.parametrize("recipe", recipes(), ids=lambda p: p.stem)
def test_deepspeed_itself_accepts_every_recipe(recipe, monkeypatch):
    """`DeepSpeedConfig` with the ranks that the recipe is for, of which this process is the first."""
    import deepspeed.comm
    from deepspeed.runtime.config import DeepSpeedConfig

    config = json.loads(recipe.read_text())
    micro, steps, total = (
        config[k] for k in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    )
    monkeypatch.setattr(deepspeed.comm, "get_rank", lambda: 0)
    accepted = DeepSpeedConfig(str(recipe), mpu=Ranks(total // (micro * steps)))
    assert accepted.train_batch_size == total
    assert accepted.world_size * micro * steps == total
    assert int(accepted.zero_config.stage) == config["zero_optimization"]["stage"]
    with pytest.raises(AssertionError):
        DeepSpeedConfig(str(recipe), mpu=Ranks(total // (micro * steps) + 1))
