# SPDX-License-Identifier: Apache-2.0
"""Models of `AutoModelForSequenceClassification`: texts with labels, and reward models. A unit is a row of the data."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid, mse_loss
from transformers import PreTrainedConfig

from harness.patches.patch_registry import PatchStates
from harness.runtime.dataset.preference_dataset import PreferenceBatch
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.evaluate import PluginMetrics
from harness.runtime.micro_batch import copy_to_device
from harness.runtime.models import load_config
from harness.runtime.models.auto_class import class_mapping
from harness.runtime.objectives.answer_log_probs import disable_dropout
from harness.runtime.objectives.causal_lm import CausalLM
from harness.runtime.objectives.objective import Objective, RunData
from harness.runtime.step import Stepper
from harness.runtime.text_part import SOURCE_KIND
from harness.runtime.topology import Topology
from harness.runtime.user_errors import user_error


class LabelHead(CausalLM):
    """A model with a head over labels, on the token files of texts or pairs."""

    _config: Any

    def load_config(self, tokenizer: Any) -> PreTrainedConfig | None:
        """With the token that fills short rows: the head reads the last one that is no such token."""
        self._config = load_config(self.run.spec.model, tokenizer)
        pad = tokenizer.pad_token_id
        self._config.get_text_config().pad_token_id = tokenizer.eos_token_id if pad is None else pad
        return cast("PreTrainedConfig", self._config)

    def check_model(self, config: Any) -> None:
        """Raises UserError (MD164) for a model without such a class, and for the text part of another."""
        mapping = class_mapping(self.name)
        if type(config) in mapping and getattr(config, SOURCE_KIND, None) is None:
            return
        raise user_error(
            "MD164",
            f"`transformers` has no class with a head over labels for a model of type `{config.model_type}`",
            key="model",
            notes=(f"`objective: {self.name}` trains a model of `AutoModelForSequenceClassification`",),
            fix="name another model",
        )

    def install_loss(self, engine: Engine, patches: PatchStates, *, is_main_process: bool) -> PatchStates:  # noqa: ARG002
        """Nothing: there are few logits."""
        return patches

    def make_stepper(self, engine: Engine, distributed: Distributed, topology: Topology) -> Stepper:
        """The stepper of data-parallel ranks."""
        return Objective.make_stepper(self, engine, distributed, topology)

    def make_eval_metrics(self) -> PluginMetrics:
        """None of a plug-in."""
        return PluginMetrics(None)

    def logits(self, engine: Engine, batch: PreferenceBatch) -> torch.Tensor:
        """(sequences, labels) in fp32."""
        logits: torch.Tensor = engine(**batch.to_model_inputs(self._device)).logits
        return logits.float()

    def values(self, batch: PreferenceBatch) -> torch.Tensor:
        """(rows, width): labels or margins."""
        return copy_to_device(cast("torch.Tensor", batch.values), self._device)

    def unit_losses(self, engine: Engine, batch: PreferenceBatch, used: torch.Tensor) -> torch.Tensor:
        """The loss of each row, (rows,). Adds the metrics of the rows that are used, where `used` is 1."""
        raise NotImplementedError

    def loss(self, engine: Engine, batch: Any, share: float) -> torch.Tensor:
        """Sum of the losses of the rows that are used, over `share`."""
        used = copy_to_device(batch.is_used.float(), self._device)
        return (self.unit_losses(engine, batch, used) * used).sum() / share

    def eval_loss(self, engine: Engine, batch: Any) -> tuple[torch.Tensor, float]:
        """(sum of the losses, rows)."""
        return self.loss(engine, batch, 1.0).detach().double(), batch.num_targets

    def add_metrics(self, values: dict[str, torch.Tensor], used: torch.Tensor) -> None:
        """Add these values (rows,) of the rows that are used."""
        for name, value in values.items():
            self.metrics.add(name, (value.detach() * used).sum(), used.sum())


class Classification(LabelHead):
    """The objective `classification`. Its unit is a text."""

    name: ClassVar[str] = "classification"
    step_metrics = ("accuracy", "absolute_error")

    def load_config(self, tokenizer: Any) -> PreTrainedConfig | None:
        """A checkpoint with this head has the names of its labels, in order."""
        config = super().load_config(tokenizer)
        named = [name for name, number in sorted(self._config.label2id.items(), key=lambda item: item[1])]
        is_trained = str((self._config.architectures or [""])[0]).endswith("ForSequenceClassification")
        settings = self.run.spec.classification
        if is_trained and not settings.label_names and not named[0].startswith("LABEL_"):
            settings = settings.model_copy(update={"label_names": tuple(named)})
            self.run = self.run._replace(spec=self.run.spec.model_copy(update={"classification": settings}))
        return config

    def open_data(self, *arguments: Any, **named: Any) -> RunData:
        """As a causal model's, and the labels of the data into the model's configuration."""
        data = super().open_data(*arguments, **named)
        names = data.prepared.labels
        self._config.problem_type = data.prepared.problem_type
        self._config.id2label = dict(enumerate(names))
        self._config.label2id = {name: i for i, name in enumerate(names)}
        return data

    def unit_losses(self, engine: Engine, batch: PreferenceBatch, used: torch.Tensor) -> torch.Tensor:
        """The means over the labels of each text, as the loss of `transformers`."""
        logits, labels = self.logits(engine, batch), self.values(batch)
        if self._config.problem_type == "regression":
            self.add_metrics({"absolute_error": (logits - labels).abs().mean(dim=1)}, used)
            return mse_loss(logits, labels, reduction="none").mean(dim=1)
        if self._config.problem_type == "multi_label_classification":
            self.add_metrics({"accuracy": ((logits > 0) == (labels > 0)).all(dim=1).float()}, used)
            return binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)
        index = labels[:, 0].long()
        self.add_metrics({"accuracy": (logits.argmax(dim=1) == index).float()}, used)
        return cross_entropy(logits, index, reduction="none")


class Reward(LabelHead):
    """The objective `reward`. Its unit is a pair of a chosen and a rejected answer (Bradley and Terry 1952)."""

    name: ClassVar[str] = "reward"
    step_metrics = ("rewards_chosen", "rewards_rejected", "rewards_margin", "rewards_accuracy", "mean_reward")

    def load_config(self, tokenizer: Any) -> PreTrainedConfig | None:
        """With one output."""
        config = super().load_config(tokenizer)
        self._config.num_labels = 1
        return config

    def build_model(self, ds_config: dict[str, Any], config: Any) -> torch.nn.Module:
        """The model, without dropout, as TRL trains it."""
        model = super().build_model(ds_config, config)
        disable_dropout(model)
        return model

    def unit_losses(self, engine: Engine, batch: PreferenceBatch, used: torch.Tensor) -> torch.Tensor:
        """The loss of each pair."""
        chosen, rejected = self.logits(engine, batch)[:, 0].chunk(2)
        weight = self.run.spec.reward.center_rewards_coefficient
        losses = -logsigmoid(chosen - rejected - self.values(batch)[:, 0])
        if weight is not None:
            losses = losses + weight * (chosen + rejected) ** 2
        metrics = {
            "rewards_chosen": chosen,
            "rewards_rejected": rejected,
            "rewards_margin": chosen - rejected,
            "rewards_accuracy": (chosen > rejected).float(),
            "mean_reward": (chosen + rejected) / 2,
        }
        self.add_metrics(metrics, used)
        return losses
