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

With `objective: custom` the file has these, the first three at least:

```python
def build_model(spec):
    '''Any `torch.nn.Module`, in fp32 and on the CPU, the same on every rank: torch is seeded by `train.seed` before.'''

def build_dataset(spec, split):
    '''The rows of `split`, "train" or "eval": a map-style dataset (`len`, `[index]`), or an iterable, which is read
    whole into memory. The same on every rank, and a row a function of its index: the harness shards, shuffles and
    resumes by position. None for "eval": nothing is held out.'''

def compute_loss(model, batch):
    '''The mean loss of a micro-batch, a scalar with its graph, or (loss, weight). Call `model(...)`, once. `batch` is
    on the device of the rank.'''

def collate(rows):
    '''Rows as tensors, in maps, lists or tuples. Default: `torch.utils.data.default_collate`.'''

def weigh(batch):
    '''The units of a micro-batch over which its loss is a mean, such as its valid tokens: a number, 0 or more. Default:
    its rows. The loss of a step is the mean over the units of the global batch.'''

def metrics(model, batch):
    '''Sums over the units of an evaluation batch, by name, such as {"right": 12.0}: divided by the units of all batches
    and ranks.'''
```

A spec is data that one may get from others, and must not run code by itself. `harness launch --allow-local-code` hands
the ranks the sha256 of the file, in the environment: a rank runs the file only if its bytes match. So the file cannot
change in between, is the same on every host, and no spec can allow itself.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from harness import input_limits
from harness.file_io import read_regular
from harness.findings import Finding, Fix
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import RunSpec

ALLOWED_CODE_VARIABLE = "HARNESS_ALLOWED_CODE"
"""The environment variable that holds the sha256 of the file that may be run."""
PLUGIN_FUNCTIONS = ("build_model", "load_documents", "metrics", "build_dataset", "compute_loss", "collate", "weigh")


_OF_CUSTOM = ("build_dataset", "compute_loss", "collate", "weigh")
_UNREAD: Mapping[str, tuple[str, ...]] = {
    "custom": ("load_documents",),
    "dpo": (*_OF_CUSTOM, "metrics"),
    "kto": (*_OF_CUSTOM, "metrics"),
    "classification": (*_OF_CUSTOM, "metrics", "build_model"),
    "reward": (*_OF_CUSTOM, "metrics", "build_model"),
}
"""Functions that an objective does not call."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in file, after it was run, and its functions."""

    path: Path
    sha256: str
    build_model: Callable[..., object] | None
    load_documents: Callable[[RunSpec], Iterable[Mapping[str, Any]]] | None
    metrics: Callable[..., Mapping[str, float]] | None
    build_dataset: Callable[[RunSpec, str], object] | None = None
    compute_loss: Callable[[Any, Any], object] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    weigh: Callable[[Any], float] | None = None
    misspelt: tuple[tuple[str, str], ...] = ()
    """(public function of the file, function that it lacks) where the names are close."""
    is_script: bool = False
    """Are these the arguments of `harness.train` in a script, and no functions of a plug-in?"""

    @property
    def key(self) -> str:
        """The key of the spec that names the file."""
        return "plugins.script" if self.is_script else "plugins.file"

    def reword(self, text: str) -> str:
        """A message about a plug-in, in the words of its user: a script has arguments where a plug-in has functions."""
        for words, own in _WORDS_OF_SCRIPTS if self.is_script else ():
            text = text.replace(words, own)
        return text


_WORDS_OF_SCRIPTS = (
    ("`build_dataset` returned", "`dataset` is"),
    ("`build_dataset` returns nothing for the split `train`", "`dataset` is `None`"),
    ("`build_dataset`", "`dataset`"),
    ("`build_model` returned", "`module` is"),
    ("`compute_loss`", "`loss`"),
    ("the plug-in", "the script"),
)
_handed_over: list[Plugin] = []


def hand_over(plugin: Plugin) -> None:
    """Make `plugin` the one of this process: what a script gave to `harness.train`."""
    _handed_over[:] = [plugin]


def load_plugin(spec: RunSpec) -> Plugin | None:
    """The spec's plug-in, run once a process, or what its script handed over; None where it has none.

    Raises UserError (MD157 not allowed or not the file that was allowed, MD158 cannot be used).
    """
    if spec.plugins.file is None:
        return _handed_over[0] if _handed_over and spec.plugins.script is not None else None
    plugin = _load_file(Path(spec.plugins.file), os.environ.get(ALLOWED_CODE_VARIABLE, ""))
    unread = next((name for name in _UNREAD.get(spec.objective, _OF_CUSTOM) if getattr(plugin, name) is not None), None)
    if unread is not None:
        also = "set `objective: custom`, or " if unread in _OF_CUSTOM else ""
        raise user_error(
            "MD158",
            f"`objective: {spec.objective}` does not call `{unread}` of `{spec.plugins.file}`",
            key="objective",
            fix=f"{also}remove or rename the function",
        )
    return plugin


def plugin_sha256(spec: RunSpec) -> str | None:
    """Of the plug-in's file; None where the spec names none."""
    plugin = load_plugin(spec)
    return None if plugin is None else plugin.sha256


@cache
def _load_file(path: Path, allowed_sha256: str) -> Plugin:
    code, digest = read_allowed_code(path, "plugins.file", allowed_sha256)
    functions, misspelt = _execute_file(path, code)
    return replace(Plugin(path, digest, *(functions[name] for name in PLUGIN_FUNCTIONS)), misspelt=misspelt)


def describe_misspelt(plugin: Plugin, objective: str) -> list[Finding]:
    """A warning for each function that nothing calls and whose name is close to one that the objective would call."""
    unread = _UNREAD.get(objective, _OF_CUSTOM)
    return [
        Finding(
            "MD158",
            "warning",
            f"`{name}` of `{plugin.path}` is not called by the harness",
            key=plugin.key,
            notes=(f"there is no function `{hook}`, which it would call",),
            fix=Fix(f"rename it to `{hook}`, or to `_{name}` if it is a function of your own"),
        )
        for name, hook in plugin.misspelt
        if hook not in unread
    ]


def read_allowed_code(path: Path, key: str, allowed_sha256: str | None = None) -> tuple[bytes, str]:
    """The bytes of the user's file and their sha256, which the environment must allow. Raises UserError."""
    allowed_sha256 = os.environ.get(ALLOWED_CODE_VARIABLE, "") if allowed_sha256 is None else allowed_sha256
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
    return code, digest


def _execute_file(path: Path, code: bytes) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Run exactly these bytes as a module; its functions by name, None for those that it lacks, and names close to
    these.
    """
    module = ModuleType(f"harness_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up there
    try:
        exec(compile(code, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - allowed by the user, see above
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
    lacking = [name for name, function in functions.items() if function is None]
    own = [
        name
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and name not in functions
    ]
    close = [(name, difflib.get_close_matches(name, lacking, 1, 0.8)) for name in own if not name.startswith("_")]
    return functions, tuple((name, hook[0]) for name, hook in close if hook)
