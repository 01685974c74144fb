# SPDX-License-Identifier: Apache-2.0
"""`harness.watch`: checks of the engine in a training loop of anybody's."""

from __future__ import annotations

import atexit
import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import deepspeed
import torch.distributed as dist

from harness.engine_watch.step_watch import EngineWatch, OnDifference, WatchOptions
from harness.file_io import parse_json
from harness.runtime.engine_checks.check_results import FILE

if TYPE_CHECKING:
    from harness.spec.run_spec import Consumer

_watches: weakref.WeakSet[EngineWatch] = weakref.WeakSet()
"""A watch lives as long as its engine, whose method refers to it."""


def watch(
    engine: Any,
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    on_difference: OnDifference = "raise",
    output: str | Path = FILE,
    consumer: Consumer | None = None,
) -> EngineWatch:
    """Watch an engine of `deepspeed.initialize` or of accelerate's `prepare`, from its first step to the last.

    It compares the engine with `config`, the JSON or its values (None: those that the engine was given), and at steps
    1, 2, 3 and every 200 the gradient that the optimizer is stepped with, with what the backward passes computed. All
    ranks call it once, after `deepspeed.initialize` and before the first step. `on_difference`: `raise` stops every
    rank with EngineDifferenceError, `warn` prints on rank 0, `write` only writes `output`, which every mode writes.
    `consumer`: who fills in `"auto"` in the JSON.

    Raises TypeError for what is no engine, RuntimeError without a process group and for a second call,
    FileNotFoundError and ValueError for a JSON that cannot be read.
    """
    engine = _find_engine(engine)
    if on_difference not in get_args(OnDifference):
        raise ValueError(
            f"harness.watch: on_difference is {on_difference!r}, should be one of {get_args(OnDifference)}"
        )
    if not dist.is_initialized():
        raise RuntimeError(
            "harness.watch: there is no process group; call it after `deepspeed.initialize`, on every rank"
        )
    if any(earlier.engine is engine and earlier.is_active for earlier in _watches):
        raise RuntimeError("harness.watch: this engine is watched already; call it once for each engine")
    values, file = _read_config(engine, config)
    if consumer is None:
        # Only accelerate and the Trainer give `deepspeed.initialize` a dictionary in which "auto" is filled in.
        consumer = "accelerate" if _has_auto(values) and isinstance(engine.config, Mapping) else "deepspeed"
    new_watch = EngineWatch(engine, WatchOptions(values, file, consumer, on_difference, Path(output).absolute()))
    _watches.add(new_watch)
    return new_watch


@atexit.register
def _close_all() -> None:
    for active_watch in list(_watches):
        active_watch.close()


def _find_engine(candidate: Any) -> Any:
    """The DeepSpeed engine of an engine or a wrapper. Raises TypeError for anything else, and without an optimizer."""
    engine = candidate if isinstance(candidate, deepspeed.DeepSpeedEngine) else getattr(candidate, "engine", None)
    if not isinstance(engine, deepspeed.DeepSpeedEngine):
        hint = ", the first value that `deepspeed.initialize` or accelerate's `prepare` returns"
        raise TypeError(f"harness.watch: a `{type(candidate).__name__}` is no DeepSpeed engine; give the engine{hint}")
    if engine.optimizer is None:
        raise TypeError("harness.watch: this engine has no optimizer, so it takes no step; give the engine that trains")
    return engine


def _read_config(engine: Any, config: str | Path | Mapping[str, Any] | None) -> tuple[dict[str, Any], Path | None]:
    """The values of the JSON, and its file where there is one."""
    config = engine.config if config is None else config
    if isinstance(config, Mapping):
        return dict(config), None
    if not isinstance(config, (str, Path)):
        raise TypeError(
            f"harness.watch: config is a `{type(config).__name__}`, should be the path of a JSON or its values"
        )
    file = Path(config)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FileNotFoundError(f"harness.watch: the DeepSpeed JSON `{file}` cannot be read: {reason}") from None
    values = _parse(file, text)
    if not isinstance(values, dict):
        raise ValueError(f"harness.watch: `{file}` holds a {type(values).__name__}, should be a JSON object")
    return values, file


def _parse(file: Path, text: str) -> Any:
    """Raises ValueError for what neither JSON nor DeepSpeed's parser reads, which allows comments."""
    try:
        return parse_json(text)
    except ValueError as error:
        try:
            import hjson

            return json.loads(json.dumps(hjson.loads(text)))
        except Exception:
            raise ValueError(f"harness.watch: `{file}` is no JSON: {error}") from None


def _has_auto(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_auto, value.values()))
    return bool(value == "auto")
