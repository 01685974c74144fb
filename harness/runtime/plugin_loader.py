# SPDX-License-Identifier: Apache-2.0
"""The user's own code: one Python file, `plugins.file` of the run spec, with any of these functions.

```python
def build_model(config, spec):
    '''The model, a `transformers.PreTrainedModel`, in fp32 and on the CPU. `config` is the `transformers` configuration
    of `model`, `spec` the whole run spec. Its forward takes `input_ids`, `labels` and what else the data brings
    (`position_ids`, `attention_mask`) and returns an object with `.loss` and `.logits`. `model.freeze`, `model.lora`
    and `train.gradient_checkpointing` are applied to it afterwards; at stage 3 DeepSpeed shards it once it is built.'''

def load_documents(spec):
    '''The training data: an iterable of records in the format that `data.format` names, such as {"text": "..."}. It is
    called once on each machine, must give the same records in the same order every time, and may be a generator.'''

def metrics(logits, labels):
    '''Numbers about one evaluation batch, each a sum over its predicted tokens, such as {"correct": 41.0}: `logits`
    (rows, length, vocabulary) and `labels` (rows, length) are already shifted, so that logits[i, j] predicts
    labels[i, j]; -100 does not count. They are summed over batches and ranks and divided by the predicted tokens.'''
```

A spec is data that one may get from others, and must not run code by itself. `harness launch --allow-local-code` hands
the ranks the sha256 of the file, in the environment: a rank runs the file only if its bytes match. So the file cannot
change in between, is the same on every host, and no spec can allow itself.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness import input_limits
from harness.file_io import read_regular
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import RunSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

ALLOWED_CODE_VARIABLE = "HARNESS_ALLOWED_CODE"
"""The environment variable that holds the sha256 of the file that may be run."""
PLUGIN_FUNCTIONS = ("build_model", "load_documents", "metrics")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in file, after it was run, and its functions."""

    path: Path
    sha256: str
    build_model: Callable[[PreTrainedConfig, RunSpec], object] | None
    load_documents: Callable[[RunSpec], Iterable[Mapping[str, Any]]] | None
    metrics: Callable[[torch.Tensor, torch.Tensor], Mapping[str, float]] | None


def load_plugin(spec: RunSpec) -> Plugin | None:
    """The spec's plug-in, run once a process; None where it names none.

    Raises UserError (MD157 not allowed or not the file that was allowed, MD158 cannot be used).
    """
    return (
        None
        if spec.plugins.file is None
        else _load_file(Path(spec.plugins.file), os.environ.get(ALLOWED_CODE_VARIABLE, ""))
    )


def plugin_sha256(spec: RunSpec) -> str | None:
    """Of the plug-in's file; None where the spec names none."""
    plugin = load_plugin(spec)
    return None if plugin is None else plugin.sha256


@cache
def _load_file(path: Path, allowed_sha256: str) -> Plugin:
    key = "plugins.file"
    try:
        code = read_regular(path, input_limits.CONFIGURATION)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise user_error("MD158", f"`{path}` cannot be read: {reason}", key=key, fix="name a Python file") from None
    digest = hashlib.sha256(code).hexdigest()
    if digest != allowed_sha256:
        reason = (
            "is not the file that was allowed: its bytes differ"
            if allowed_sha256
            else "is code, and running it was not allowed"
        )
        raise user_error(
            "MD157",
            f"`{path}` {reason}",
            key=key,
            notes=("every host must have the same file",) if allowed_sha256 else (),
            fix="read the file, then start with `harness launch --allow-local-code`",
        )
    functions = _execute_file(path, code)
    return Plugin(path, digest, *(functions[name] for name in PLUGIN_FUNCTIONS))


def _execute_file(path: Path, code: bytes) -> dict[str, Any]:
    """Run exactly these bytes as a module; its functions by name, None for those that it lacks."""
    module = ModuleType(f"harness_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up there
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)  # noqa: S102 - allowed by the user, see above
    except Exception as error:
        raise user_error(
            "MD158", f"`{path}` fails: {type(error).__name__}: {error}", key="plugins.file", fix="fix the file"
        ) from error
    functions = {name: getattr(module, name, None) for name in PLUGIN_FUNCTIONS}
    if not any(callable(function) for function in functions.values()):
        raise user_error(
            "MD158",
            f"`{path}` defines none of the functions {', '.join(f'`{name}`' for name in PLUGIN_FUNCTIONS)}",
            key="plugins.file",
            fix="define one of them",
        )
    return functions
