# SPDX-License-Identifier: Apache-2.0
"""Our table of DeepSpeed's keys against the installed DeepSpeed's own models and constants: a new release shows up here.

What it makes of values is in `test_key_values`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic_core import PydanticUndefined

from harness.facts.deepspeed_keys import MISSING, block_keys, block_paths, is_typed_block
from harness.facts.deepspeed_version import installed_version, parse_version
from tests.support.training.deepspeed_models import MODELS, READ, fields

VERSION = parse_version(installed_version() or "0")
TYPES = {bool: "bool", int: "int", float: "number", str: "str", Path: "str", list: "list", dict: "dict", tuple: "list"}
TYPED = pytest.mark.parametrize("path", MODELS)


def current(path):
    return {k: v for k, v in block_keys(path).items() if v.gone is None and (v.since is None or v.since <= VERSION)}


def plain(value: Any) -> Any:
    """A default as JSON would have it."""
    value = getattr(value, "value", value)
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, int) else value


def test_every_typed_block_is_compared():
    assert set(MODELS) | {"bfloat16"} == {path for path in block_paths() if is_typed_block(path, VERSION)}


@TYPED
def test_every_field_is_known_and_no_other(path):
    theirs = {name for field, json_name, _ in fields(path) for name in (field, json_name)}
    assert set(current(path)) == theirs


@TYPED
def test_the_types_are_the_fields_types(path):
    for _, name, field in fields(path):
        key = current(path)[name]
        parts = (field.annotation, *get_args(field.annotation))
        found = [t for t in (get_origin(p) or p for p in parts) if t in TYPES]
        if found and key.type not in ("any", "block"):
            assert TYPES[found[0]] == key.type, name
        if key.type != "any":
            assert key.nullable == (type(None) in get_args(field.annotation)), name


@TYPED
def test_the_defaults_are_the_fields_defaults(path):
    for _, name, field in fields(path):
        key = current(path)[name]
        if key.default is MISSING:
            assert name in ("dtype", "classes"), f"{name} has a default that JSON can say"
            continue
        made = (
            field.default_factory() if field.default is PydanticUndefined and field.default_factory else field.default
        )
        assert plain(made) == key.default or key.default == {}, name


@TYPED
def test_the_ranges_are_the_fields_ranges(path):
    for _, name, field in fields(path):
        theirs = {
            (op, float(getattr(m, op))) for m in field.metadata for op in ("ge", "gt", "le", "lt") if hasattr(m, op)
        }
        ours = {(b.op, b.limit) for b in current(path)[name].bounds if b.since is None or b.since <= VERSION}
        tighter = {("ge", limit) for op, limit in ours if op == "gt"} | {
            ("le", limit) for op, limit in ours if op == "lt"
        }
        assert theirs <= ours, name
        if name not in ("stage", "loss_scale"):  # an enumeration there, and a validator
            assert ours - tighter <= theirs, name


@TYPED
def test_the_deprecations_are_the_fields_deprecations(path):
    for _, name, field in fields(path):
        deprecated = bool((field.json_schema_extra or {}).get("deprecated"))
        assert (current(path)[name].successor is not None) == deprecated, name


@TYPED
def test_the_other_names_are_the_fields_aliases(path):
    for field, name, _ in fields(path):
        if field != name:
            assert current(path)[field].alias == name


def read_by_hand():
    return [p for p in READ if p and p not in MODELS and p != "checkpoint.writer"]


@pytest.mark.parametrize("path", ["", *read_by_hand()])
def test_the_defaults_of_what_deepspeed_reads_by_hand(path):
    """What `DeepSpeedConfig` holds of an almost empty JSON."""
    from deepspeed.runtime.config import DeepSpeedConfig

    holder = READ[path](DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1}))
    values = holder if isinstance(holder, dict) else vars(holder)
    derived = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    compared = 0
    for name, key in current(path).items():
        if (
            name not in values
            or key.default is MISSING
            or name in derived
            or name == "use_data_before_expert_parallelism"
        ):
            continue
        theirs = values[name]
        compared += 1
        if key.name.endswith("communication_data_type"):
            assert str(theirs).rpartition(".")[2] in (str(key.default), "float32"), name
        else:
            assert theirs == key.default, name
    assert compared > 0


def test_the_defaults_of_writer_and_the_rest_of_the_constants():
    from deepspeed.runtime.model_checkpointing import constants

    defaults = {k.lower().removeprefix("checkpoint_"): v for k, v in vars(constants).items() if k.endswith("_DEFAULT")}
    aliases = {"type": "writer_type", "decoupled": "writer_decoupled", "show_statistics": "io_statistics"}
    for name, key in current("checkpoint.writer").items():
        assert defaults[f"{aliases.get(name, name)}_default"] == key.default, name
    assert defaults["tag_validation_default"] == block_keys("checkpoint")["tag_validation"].default


class Listening(dict):
    """A configuration that notes which names are looked up."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = set()

    def __contains__(self, name):
        self.seen.add(name)
        return super().__contains__(name)

    def get(self, name, default=None):
        self.seen.add(name)
        return super().get(name, default)

    def keys(self):
        return self  # `name in config.keys()` is a look-up too

    def __copy__(self):
        return self


def top_level_reads():
    """Every name that `DeepSpeedConfig` looks up at the top level."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = Listening(train_micro_batch_size_per_gpu=1)
    DeepSpeedConfig(config)
    return config.seen


def test_every_name_that_deepspeed_looks_up_is_known():
    seen = top_level_reads()
    assert len(seen) > 50
    assert seen <= set(block_keys(""))


def test_every_key_is_looked_up_or_read_elsewhere():
    elsewhere = {"data_parallel_size", "sequence_parallel_size"}  # by deepspeed.initialize, and for a known world
    assert set(current("")) - top_level_reads() <= elsewhere


@pytest.mark.parametrize("name", [k.name for k in block_keys("").values() if k.gone and k.type in ("dict", "any")])
def test_a_key_that_is_gone_is_refused(name):
    from deepspeed.runtime.config import DeepSpeedConfig

    with pytest.raises(Exception, match="removed"):
        DeepSpeedConfig({"train_batch_size": 1, name: {}})


def test_the_names_in_tables_are_blocks_of_their_parents():
    for path in block_paths():
        parent, _, name = path.rpartition(".")
        if path:
            assert block_keys(parent)[name].type in ("block", "blocks", "maps"), path


def recipes():
    return sorted((Path(__file__).parents[3] / "ds_configs").glob("*.json"))


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
    micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    total = config.get("train_batch_size")  # AutoTP would multiply it by the whole world: the render leaves it out
    ranks = total // (micro * steps) if total else 2
    monkeypatch.setattr(deepspeed.comm, "get_rank", lambda: 0)
    accepted = DeepSpeedConfig(str(recipe), mpu=Ranks(ranks))
    assert accepted.train_batch_size == accepted.world_size * micro * steps == (total or ranks * micro * steps)
    assert int(accepted.zero_config.stage) == config["zero_optimization"]["stage"]
    if total:
        with pytest.raises(AssertionError):
            DeepSpeedConfig(str(recipe), mpu=Ranks(ranks + 1))
