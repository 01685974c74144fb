# SPDX-License-Identifier: Apache-2.0
"""A module, data and a loss of the user's own, from the plug-in (`plugin_loader.py`). Its unit is what `weigh` counts.

What the plug-in does wrong is a finding (MD158). One rank alone may find it, while the others wait in a collective: it
ends at once, and the launcher ends the others.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import numpy as np
import torch
from accelerate.utils import set_seed
from torch.utils.data import default_collate
from transformers import PreTrainedConfig

from harness.errors import UserError, user_error
from harness.run.resolved_run import ResolvedRun
from harness.runtime.dataset.example_dataset import ExampleDataset, TensorBatch
from harness.runtime.dataset.preparation import PreparedData, PreparedGroup
from harness.runtime.dataset.sampler import EvalData, TrainData, key_of_batch
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.evaluate import PluginMetrics
from harness.runtime.micro_batch import BatchGeometry
from harness.runtime.models.trainable_parameters import freeze_parameters
from harness.runtime.objectives.objective import Objective, RunData
from harness.runtime.plugin_loader import Plugin, load_plugin
from harness.runtime.run_config import RunDir
from harness.runtime.step import Stepper
from harness.runtime.topology import Topology

T = TypeVar("T")
_FIRST_ROWS = 4
"""Rows of which checkpoints have the digest, from the first on."""
_SPREAD_ROWS = 8
"""Rows that are compared besides, from the first to the last."""
_MAX_ITERATED_ROWS = 10_000_000
"""Rows of an iterable, which is read into memory: one without an end would never begin to train."""
_REQUIRED = ("build_model", "build_dataset", "compute_loss")


class Custom(Objective):
    """The objective `custom`."""

    name: ClassVar[str] = "custom"
    _distributed: Distributed

    @property
    def _plugin(self) -> Plugin:
        plugin = load_plugin(self.run.spec)
        missing = [name for name in _REQUIRED if plugin is None or getattr(plugin, name) is None]
        if plugin is None or missing:
            self._refuse(
                f"`objective: custom` needs {', '.join(f'`{name}`' for name in missing)} in the plug-in",
                fix="define them in the file of `plugins.file`",
            )
        return plugin

    def load_tokenizer(self) -> None:
        """None is needed. Raises UserError (MD158) for a plug-in without a function that is needed."""
        self._plugin  # noqa: B018

    def load_config(self, tokenizer: Any) -> PreTrainedConfig | None:  # noqa: ARG002
        """The module has none that anybody else reads."""
        return None

    def open_data(
        self,
        tokenizer: Any,  # noqa: ARG002
        run_dir: RunDir,  # noqa: ARG002
        distributed: Distributed,
        geometry: BatchGeometry,
        data_parallel_rank: int,
    ) -> RunData:
        """The rows of `build_dataset`, which are the same on every rank."""
        self._distributed, on_all_ranks = distributed, distributed.call_or_fail_everywhere
        train = on_all_ranks(lambda: self._open_split("train"))
        held_out = on_all_ranks(lambda: self._open_split("eval"))
        if train is None:
            self._refuse("`build_dataset` returns nothing for the split `train`", fix="return rows")
        prepared = _describe(train, held_out, "")
        data = on_all_ranks(lambda: _make_run_data(self.run, prepared, train, held_out, geometry, data_parallel_rank))
        first = np.arange(min(_FIRST_ROWS, len(train)))
        digest = on_all_ranks(lambda: self._digest_rows(train, first))
        self.rows_sha256, held_digest = on_all_ranks(lambda: [self._digest_spread(each) for each in (train, held_out)])
        self._check_same_rows(f"{digest} {self.rows_sha256} {held_digest}")
        return data._replace(prepared=_describe(train, held_out, digest))

    def _open_split(self, split: str) -> ExampleDataset | None:
        rows = self._call("build_dataset", self.run.spec, split)
        if rows is None:
            return None
        has_index = hasattr(rows, "__getitem__") and not isinstance(rows, torch.utils.data.IterableDataset)
        if not (has_index and hasattr(rows, "__len__")):
            if not isinstance(rows, Iterable):
                self._refuse(
                    f"`build_dataset` returned a `{type(rows).__name__}`", fix="return a dataset or an iterable of rows"
                )
            rows = self._run("build_dataset", lambda: list(islice(cast("Iterable[Any]", rows), _MAX_ITERATED_ROWS + 1)))
            if len(rows) > _MAX_ITERATED_ROWS:
                message = f"the iterable of `build_dataset` has more than {_MAX_ITERATED_ROWS:,} rows"
                self._refuse(message, fix="return a dataset with `len` and `[index]`, which is not read into memory")
        return ExampleDataset(cast("Sequence[Any]", rows), self.collate, self._weigh)

    def preview_rows(self, count: int) -> dict[str, Any]:
        """Sizes of the splits, and the first rows of `train`, each as a batch of one. Raises UserError (MD158)."""
        splits = {split: self._open_split(split) for split in ("train", "eval")}
        train = splits["train"]
        if train is None:
            self._refuse("`build_dataset` returns nothing for the split `train`", fix="return rows")
        batches = [train.make_batch(np.array([index])) for index in range(min(count, len(train)))]
        rows = [{"units": batch.weight, "tensors": _describe_tensors(batch.tensors)} for batch in batches]
        sizes = {split: 0 if rows is None else len(rows) for split, rows in splits.items()}
        return {"rows": sizes, "examples": rows, "findings": []}

    def _digest_spread(self, dataset: ExampleDataset | None) -> str:
        if dataset is None:
            return "none"
        count = len(dataset)
        return self._digest_rows(dataset, np.linspace(0, count - 1, min(_SPREAD_ROWS, count), dtype=np.int64))

    def _digest_rows(self, dataset: ExampleDataset, indices: np.ndarray) -> str:
        """Of the number of rows and of these, each by itself: a resume may have another micro-batch. Raises UserError
        where they differ when read again.
        """
        digests = []
        for _ in range(2):
            digest = hashlib.sha256(str(len(dataset)).encode())
            for index in indices:
                batch = self._run("build_dataset", lambda index=index: dataset.make_batch(np.array([index])))  # type: ignore[misc]
                if not batch.host_tensors():
                    self._refuse("`collate` returns no tensor", fix="return tensors, in a map, a list or a tuple")
                for tensor in batch.host_tensors():
                    digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                    digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
            digests.append(digest.hexdigest())
        if digests[0] != digests[1]:
            message = "rows differ when they are read again, so that a resume could not continue with them"
            self._refuse(message, fix="make a row a function of its index: draw from a generator that its index seeds")
        return digests[0]

    def _check_same_rows(self, digest: str) -> None:
        """Refuse ranks whose rows differ: each would train on a part of another data set."""
        digests = self._distributed.all_gather_object(digest)
        other = next((rank for rank, own in enumerate(digests) if own != digests[0]), None)
        error = None
        if other is not None:
            error = self._error(
                "MD119",
                f"rank {other} has other rows or batches than rank 0",
                note="`build_dataset` and `collate` must not depend on the rank",
                fix="return the whole dataset on every rank; the harness shards it",
            )
        self._distributed.raise_everywhere(error)

    def collate(self, rows: list[Any]) -> Any:
        """By the plug-in, else by torch's default."""
        return (
            self._call("collate", rows)
            if self._plugin.collate
            else self._run(
                "default_collate",
                lambda: default_collate(rows),
                fix="write `collate(rows)`, which pads rows to one shape",
            )
        )

    def _weigh(self, tensors: Any, num_rows: int) -> float:
        if self._plugin.weigh is None:
            return num_rows
        weight = self._read_number("weigh", self._call("weigh", tensors), "what `weigh` returned")
        if not 0 <= weight < float("inf"):
            self._refuse(
                f"`weigh` returned {weight}, should be 0 or more", fix="return the number of units of the batch"
            )
        return weight

    def build_model(self, ds_config: dict[str, Any], config: Any) -> torch.nn.Module:  # noqa: ARG002
        """The module, whole on every rank; at stage 3 the engine shards it."""
        set_seed(self.run.spec.train.seed)

        def build() -> torch.nn.Module:
            model = self._call("build_model", self.run.spec)
            if not isinstance(model, torch.nn.Module):
                self._refuse(f"`build_model` returned a `{type(model).__name__}`", fix="return a `torch.nn.Module`")
            if self.run.spec.model.freeze or self.run.spec.model.train_only:
                freeze_parameters(cast("Any", model), self.run.spec.model)
            if not any(parameter.requires_grad for parameter in model.parameters()):
                self._refuse(
                    "`build_model` returned a module without a parameter to train", fix="return one that has some"
                )
            return model.train()

        return self._distributed.call_or_fail_everywhere(build)

    def make_stepper(self, engine: Engine, distributed: Distributed, topology: Topology) -> Stepper:
        """The usual one, over the units that the batches of all ranks have."""
        self._units_vary, self._own_metrics = self._plugin.weigh is not None, PluginMetrics(None)
        return super().make_stepper(engine, distributed, topology)

    def count_units(self, micro_batches: Sequence[Any], num_rows: int) -> float:
        """Those of the global batch. A collective where `weigh` counts them."""
        if not self._units_vary:
            return num_rows
        total = self._distributed.all_reduce_sum(sum(batch.weight for batch in micro_batches))[0]
        if not total:
            self._refuse("`weigh` counts no unit in a global batch", fix="leave rows without units out of the dataset")
        return total

    def make_eval_metrics(self) -> PluginMetrics:
        """The sums of `metrics`, which is called for each batch of the evaluation."""
        self._own_metrics = PluginMetrics(self._plugin.metrics, hooks=False)
        return self._own_metrics

    def loss(self, engine: Engine, batch: TensorBatch, share: float) -> torch.Tensor:
        """The mean loss of `compute_loss`, times the units of the batch over `share`."""
        loss = self._mean_loss(engine, batch)
        if not loss.requires_grad:
            self._refuse(
                "the loss of `compute_loss` has no graph, so that nothing would be trained",
                fix="compute it from the output of `model(...)`, without `detach`, `item` or `no_grad`",
            )
        if not batch.weight:  # a mean over nothing is NaN; the graph stays, since other ranks gather and reduce in it
            loss = loss.nan_to_num(0.0, 0.0, 0.0)
        return loss * (batch.weight / share)

    def eval_loss(self, engine: Engine, batch: TensorBatch) -> tuple[torch.Tensor, float]:
        """As `loss`, with the metrics of the plug-in. Rows that weigh nothing are computed and not counted."""
        loss = self._mean_loss(engine, batch).detach().double()
        function = self._plugin.metrics
        if function is not None:
            values = self._call("metrics", engine, batch.to_device(self._device))
            if batch.weight:
                items = self._run("metrics", lambda: cast("Any", values).items(), fix="return a map of names to sums")
                self._own_metrics.add(
                    {str(name): self._read_number("metrics", v, f"`{name}` of `metrics`") for name, v in items}
                )
        return (loss * batch.weight, batch.weight) if batch.weight else (torch.zeros_like(loss), 0)

    def _mean_loss(self, engine: Engine, batch: TensorBatch) -> torch.Tensor:
        tensors = batch.to_device(self._device)
        result = self._call("compute_loss", engine, tensors, note=_describe_batch(tensors))
        loss, weight = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.is_complex():
            what = (
                f"a {loss.dtype} tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else f"`{loss!r:.60}`"
            )
            self._refuse(f"`compute_loss` returned {what} as the loss", fix="return a scalar tensor, or (loss, weight)")
        if weight is not None:
            weight = self._run(
                "compute_loss", lambda: float(cast("Any", weight)), "the second value is the weight of the loss"
            )
        if weight is not None and batch.weight and weight != batch.weight:
            self._refuse(
                f"`compute_loss` returned the weight {weight:g} for a batch of {batch.weight:g} units",
                fix="define `weigh(batch)`, which counts the units before the loss is computed",
            )
        return loss.reshape(()).float()

    def _read_number(self, function: str, value: Any, what: str) -> float:
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            message = f"{what} is a {value.dtype} tensor of shape {tuple(value.shape)}, should be a number"
            self._refuse(message, fix="return the sum, such as `.sum()`")
        return self._run(function, lambda: float(value), f"{what} is a `{type(value).__name__}`")

    def _call(self, name: str, *arguments: Any, note: str = "") -> object:
        function = getattr(self._plugin, name)
        return self._run(name, lambda: function(*arguments), note)

    def _run(self, name: str, function: Callable[[], T], note: str = "", fix: str = "fix the function") -> T:
        """`function()`; what it raises becomes a finding that names the function and the line of the user's file."""
        try:
            return function()
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            path = str(self._plugin.path)
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
            where = f" in line {lines[-1]}" if lines else ""
            text = str(error).splitlines()[0] if str(error) else ""
            message = f"`{name}` of the plug-in fails{where}: {type(error).__name__}: {text}"
            self._refuse(message, fix=fix, note=note)

    def _refuse(self, message: str, *, fix: str, note: str = "") -> NoReturn:
        raise self._error("MD158", message, fix=fix, note=note)

    def _error(self, gate: str, message: str, *, fix: str, note: str = "") -> UserError:
        """In the words of a plug-in, or of a script that called `harness.train`."""
        plugin = load_plugin(self.run.spec)
        key, reword = ("plugins.file", str) if plugin is None else (plugin.key, plugin.reword)
        return user_error(gate, reword(message), key=key, notes=(reword(note),) if note else (), fix=reword(fix))


def _describe_tensors(value: Any, name: str = "") -> list[dict[str, Any]]:
    """Name, type, shape and first value of each tensor in maps, lists and tuples."""
    if isinstance(value, torch.Tensor):
        first = value.flatten()[:1].tolist()
        return [
            {"name": name, "dtype": str(value.dtype), "shape": list(value.shape), "first": first[0] if first else None}
        ]
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [each for key, part in parts for each in _describe_tensors(part, f"{name}.{key}" if name else str(key))]


def _describe_batch(tensors: Any) -> str:
    if isinstance(tensors, dict):
        return f"the batch has {', '.join(f'`{name}`' for name in tensors)}"
    return f"the batch is a `{type(tensors).__name__}`"


def _describe(train: ExampleDataset, held_out: ExampleDataset | None, digest: str) -> PreparedData:
    """Rows as documents; they have no tokens that anybody counts."""
    sizes = {"train": len(train), "eval": 0 if held_out is None else len(held_out)}
    groups = {
        role: (PreparedGroup(role, count, False, False, None, count, 0, 0, "`build_dataset`"),) if count else ()
        for role, count in sizes.items()
    }
    return PreparedData(0, 0, sizes["train"], sizes["eval"], None, digest, groups["train"], groups["eval"])


def _make_run_data(
    run: ResolvedRun,
    prepared: PreparedData,
    train: ExampleDataset,
    held_out: ExampleDataset | None,
    geometry: BatchGeometry,
    data_parallel_rank: int,
) -> RunData:
    """The rows in the order of the run. Raises UserError (MD115) where they do not fill a global batch."""
    data = run.spec.data
    train_data = TrainData(train, geometry, data_parallel_rank, run.spec.train.seed, data.shuffle, data.group_by_length)
    if not train_data.steps_per_epoch:
        raise user_error(
            "MD115",
            f"a step needs {geometry.global_batch_size:,} rows, and the training data has {len(train):,} of them",
            key="train",
            notes=(
                f"a step: micro-batch {geometry.micro_batch_size:,} x {geometry.accumulation_steps:,} accumulation "
                f"steps x {geometry.data_parallel_size:,} ranks",
            ),
            fix=f"add data, or set a smaller `{key_of_batch(run.spec.train)}`",
        )
    if held_out is None or not len(held_out):
        return RunData(prepared, train_data, None)
    size = run.spec.eval.per_device_eval_batch_size or geometry.micro_batch_size
    return RunData(prepared, train_data, EvalData(held_out, size, data_parallel_rank, geometry.data_parallel_size))
