# SPDX-License-Identifier: Apache-2.0
"""Training on preferences: what DPO and KTO share. The reference is this model before training, asked once for all
rows, so that no second model is in memory.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from transformers import PreTrainedConfig

from harness.runtime.dataset.cache import cache_root, file_sha256, own_path
from harness.runtime.dataset.preference_dataset import PreferenceBatch, PreferenceDataset
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.micro_batch import MicroBatch, copy_to_device
from harness.runtime.models.model_config import is_random_init
from harness.runtime.models.safetensors_reader import open_safetensors
from harness.runtime.objectives.answer_log_probs import answer_log_probs, disable_dropout, reference_mode
from harness.runtime.objectives.causal_lm import CausalLM
from harness.runtime.objectives.objective import Objective, RunData
from harness.runtime.objectives.reference_cache import compute_reference, reference_key, split_rows
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.step import Stepper
from harness.runtime.topology import Topology

_PACKAGES = ("torch", "transformers", "deepspeed", "peft")


class Preference(CausalLM):
    """A causal language model that is trained on the log-probabilities of answers. Its unit is a row of the data."""

    num_columns: ClassVar[int]
    """Numbers of the reference for each row."""
    _config: PreTrainedConfig

    def build_model(self, ds_config: dict[str, Any], config: PreTrainedConfig) -> torch.nn.Module:
        """The model, without dropout."""
        self._config, self._ds_config = config, ds_config
        model = super().build_model(ds_config, config)
        disable_dropout(model)
        return model

    def make_stepper(self, engine: Engine, distributed: Distributed, topology: Topology) -> Stepper:
        """The stepper of data-parallel ranks."""
        self._distributed = distributed
        return Objective.make_stepper(self, engine, distributed, topology)

    def prepare(self, engine: Engine, data: RunData, distributed: Distributed, status: RankStatusWriter) -> None:
        """Ask the model about each row before it is trained, or read what an earlier run was told. A collective."""
        order, train = data.train.epoch_order(0), cast("PreferenceDataset", data.train.dataset)
        micro_batch_size, sha256 = data.train.geometry.micro_batch_size, data.prepared.sha256
        self._prepare_rows(engine, train, order, micro_batch_size, f"train {sha256}", distributed, status)
        if data.eval is not None:
            lengths = data.eval.dataset.lengths
            order = np.argsort(lengths, kind="stable")
            micro_batch_size = data.eval.micro_batch_size
            rows, held_out = f"eval {sha256}", cast("PreferenceDataset", data.eval.dataset)
            self._prepare_rows(engine, held_out, order, micro_batch_size, rows, distributed, status)

    def _prepare_rows(
        self,
        engine: Engine,
        dataset: PreferenceDataset,
        order: np.ndarray,
        micro_batch_size: int,
        rows: str,
        distributed: Distributed,
        status: RankStatusWriter,
    ) -> None:
        micro_batches = split_rows(order, len(dataset), micro_batch_size)
        parts = self._identity(distributed) | {"rows": rows, "micro_batches": _hash_order(dataset, micro_batches)}
        folder = own_path(cache_root(self.run.spec.data) / "references") / reference_key(parts)

        def compute(indices: np.ndarray) -> np.ndarray:
            with reference_mode(engine):
                columns = self.reference_columns(engine, dataset.make_batch(indices))
            status.heartbeat()
            return torch.stack(columns, dim=1).float().cpu().numpy()

        dataset.columns["reference"] = compute_reference(
            folder, micro_batches, self.num_columns, compute, distributed, status.set_activity
        )

    def _identity(self, distributed: Distributed) -> dict[str, Any]:
        """Everything that the reference's numbers depend on, but for the rows. A collective."""
        spec = self.run.spec
        model = spec.model.model_dump(mode="json", exclude={"lora", "freeze", "train_only"})
        weights = self._hash_weights(distributed)
        self.reference_sha256 = hashlib.sha256(" ".join(weights).encode()).hexdigest()
        return {
            "objective": [spec.objective, getattr(spec, spec.objective).loss_type == "apo_zero_unpaired"],
            "model": model,
            "config": self._config.to_dict(),
            "weights": weights,
            "precision": spec.precision.model_dump(mode="json"),
            "chunk": self.run.loss_chunk_size if self._head is not None else 0,
            "packages": {name: _version_of(name) for name in _PACKAGES},
        }

    def _hash_weights(self, distributed: Distributed) -> list[str]:
        """Of the weights' files, which the ranks share; of random weights, the seed."""
        spec = self.run.spec
        plugin = [file_sha256(Path(spec.plugins.file), self._hashes())] if spec.plugins.file else []
        if is_random_init(spec.model):
            return [f"seed {spec.train.seed}", *plugin]
        try:
            files = open_safetensors(spec.model)
        except (OSError, ValueError):
            files = None
        paths = sorted(set(files.paths.values())) if files is not None else []
        mine = range(distributed.rank, len(paths), distributed.world_size)
        gathered = distributed.all_gather_object({str(i): file_sha256(paths[i], self._hashes()) for i in mine})
        digests = {index: digest for part in gathered for index, digest in part.items()}
        return [digests[str(i)] for i in range(len(paths))] + plugin

    def _hashes(self) -> Path:
        memory = own_path(cache_root(self.run.spec.data) / "files")
        memory.mkdir(parents=True, exist_ok=True)
        return memory

    def log_probs(self, engine: Engine, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(sums over the answers' tokens, their numbers), (sequences,) each."""
        inputs, labels = batch.to_model_inputs(self._device), copy_to_device(batch.labels, self._device)
        sums = answer_log_probs(engine, self._head, inputs["input_ids"], inputs.get("attention_mask"), labels)
        return sums, copy_to_device((batch.labels[:, 1:] >= 0).sum(dim=1), self._device)

    def reference_columns(self, engine: Engine, batch: PreferenceBatch) -> list[torch.Tensor]:
        """`num_columns` tensors (rows,): what the loss needs of the reference."""
        raise NotImplementedError

    def unit_losses(self, engine: Engine, batch: PreferenceBatch) -> torch.Tensor:
        """The loss of each row, (rows,). Adds the metrics of the rows that are used."""
        raise NotImplementedError

    def loss(self, engine: Engine, batch: Any, share: float) -> torch.Tensor:
        """Sum of the losses of the rows that are used, over `share`."""
        losses = self.unit_losses(engine, batch)
        return (losses * self._used(batch)).sum() / share

    def eval_loss(self, engine: Engine, batch: Any) -> tuple[torch.Tensor, float]:
        """(sum of the losses, rows)."""
        return self.loss(engine, batch, 1.0).detach().double(), batch.num_targets

    def _used(self, batch: PreferenceBatch) -> torch.Tensor:
        return copy_to_device(cast("torch.Tensor", batch.is_used).float(), self._device)

    def _reference(self, batch: PreferenceBatch) -> torch.Tensor:
        return copy_to_device(cast("torch.Tensor", batch.reference), self._device)

    def add_metrics(self, values: dict[str, torch.Tensor], used: torch.Tensor) -> None:
        """Add these values (rows,) of the rows that are used, where `used` is 1."""
        count = used.sum()
        for name, value in values.items():
            self.metrics.add(name, (value.detach() * used).sum(), count)


def _hash_order(dataset: PreferenceDataset, micro_batches: list[np.ndarray]) -> str:
    """Of the rows of each micro-batch, and of what else makes a batch of them."""
    digest = hashlib.sha256()
    for part in micro_batches:
        digest.update(len(part).to_bytes(4, "little") + np.asarray(part, dtype=np.int64).tobytes())
    digest.update(f"{dataset.kl_rows} {dataset.max_length} {dataset.pad_to_multiple_of}".encode())
    return digest.hexdigest()


def _version_of(package: str) -> str:
    try:
        return version(package)
    except ImportError:
        return ""
