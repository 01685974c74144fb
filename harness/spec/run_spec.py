# SPDX-License-Identifier: Apache-2.0
"""The run spec, version 1: every field that a user may set. Its sections are in `sections/`.

Shapes and ranges only. `harness.gates` checks combinations of fields. Names are those that users of the Hugging Face
ecosystem already type; inside `zero` and `deepspeed` they are DeepSpeed's own.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from harness.object_stores.store_url import is_store_url
from harness.spec.sections.checkpoint_spec import CheckpointSpec, ExportSpec
from harness.spec.sections.cluster_spec import ClusterSpec
from harness.spec.sections.data_spec import DataSpec
from harness.spec.sections.label_spec import ClassificationSpec, RewardSpec
from harness.spec.sections.launch_spec import LaunchSpec
from harness.spec.sections.model_spec import ModelSpec
from harness.spec.sections.preference_spec import DpoSpec, KtoSpec
from harness.spec.sections.section import Section, Strings
from harness.spec.sections.telemetry_spec import LoggingSpec, TelemetrySpec
from harness.spec.sections.training_spec import EvalSpec, OptimizerSpec, PrecisionSpec, SchedulerSpec, TrainSpec
from harness.spec.sections.zero_spec import OffloadOptimizerSpec, OffloadParamSpec, ParallelSpec, ZeroSpec


class PluginsSpec(Section):
    """User code for settings that a spec cannot express. It runs only with `harness launch --allow-local-code`."""

    file: str | None = None
    """A Python file with `build_model(config, spec)`, `load_documents(spec)` or `metrics(logits, labels)`; with
    `objective: custom` with `build_model(spec)`, `build_dataset(spec, split)`, `compute_loss(model, batch)` and others
    (docs/own-models.md). A relative path starts at the spec's folder, else at the current one.
    """
    script: str | None = None
    """A Python file that every rank runs in place of the harness's loop, as `harness launch --script` starts it: it
    calls `harness.train`, `deepspeed.initialize` or accelerate's `Accelerator` (docs/own-models.md). A relative path
    starts where that of `file` does.
    """
    script_args: Strings = ()
    """The arguments of the script. Variables in them, such as `$HARNESS_DS_CONFIG`, are replaced on the ranks."""


__all__ = [
    "ClusterSpec",
    "Consumer",
    "InputKind",
    "ModelSpec",
    "OffloadOptimizerSpec",
    "OffloadParamSpec",
    "RunSpec",
    "SchedulerSpec",
    "Section",
]

InputKind = Literal["spec", "deepspeed-json"]
"""The kind of a file: our own YAML, or a DeepSpeed JSON that is read as a run spec."""
Consumer = Literal["hf", "accelerate", "deepspeed"]
"""The program that reads a DeepSpeed JSON: the Hugging Face Trainer, accelerate, or DeepSpeed itself."""


class RunSpec(Section):
    """One training run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    """Names the run directory. Default: the file's name."""
    objective: Literal["causal_lm", "custom", "dpo", "kto", "classification", "reward"] = "causal_lm"
    """The loss, and what it makes of a record. `causal_lm`: the next token of a text; `dpo`: pairs of a chosen and a
    rejected answer; `kto`: answers that are labelled desirable or not; `classification`: texts with labels; `reward`: a
    reward model from pairs; `custom`: a model, data and a loss of your own, from `plugins.file` or
    `plugins.script`.
    """
    model: ModelSpec = Field(default_factory=ModelSpec)
    data: DataSpec = Field(default_factory=DataSpec)
    dpo: DpoSpec = Field(default_factory=DpoSpec)
    kto: KtoSpec = Field(default_factory=KtoSpec)
    classification: ClassificationSpec = Field(default_factory=ClassificationSpec)
    reward: RewardSpec = Field(default_factory=RewardSpec)
    train: TrainSpec = Field(default_factory=TrainSpec)
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    scheduler: SchedulerSpec = Field(default_factory=SchedulerSpec)
    precision: PrecisionSpec = Field(default_factory=PrecisionSpec)
    zero: ZeroSpec = Field(default_factory=lambda: ZeroSpec(stage=0))
    parallel: ParallelSpec = Field(default_factory=ParallelSpec)
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    eval: EvalSpec = Field(default_factory=EvalSpec)
    export: ExportSpec = Field(default_factory=ExportSpec)
    logging: LoggingSpec = Field(default_factory=LoggingSpec)
    telemetry: TelemetrySpec = Field(default_factory=TelemetrySpec)
    launch: LaunchSpec = Field(default_factory=LaunchSpec)
    plugins: PluginsSpec = Field(default_factory=PluginsSpec)
    cluster: ClusterSpec = Field(default_factory=ClusterSpec)
    ignore: dict[str, str] = Field(default_factory=dict)
    """Findings to ignore, by the id of a gate or of an engine check, each with the reason."""
    allow_undocumented: Strings = ()
    """Gates whose combination works on this DeepSpeed although its documentation does not promise it. There is none at
    present: specs that name `TP001` are still read."""
    tuned_defaults: bool = True
    """Choose unset options that affect speed and memory by model and hardware. `false`: DeepSpeed's defaults."""
    deepspeed: dict[str, Any] = Field(default_factory=dict)
    """Any other documented DeepSpeed key, as in its JSON."""

    @property
    def store_urls(self) -> list[tuple[str, str]]:
        """The URLs of object stores, each with its key."""
        sources = [(f"data.{name}", one.path) for name in ("train", "eval") for one in getattr(self.data, name) or ()]
        uploads = [("checkpoint.upload_to", self.checkpoint.upload_to), ("export.upload_to", self.export.upload_to)]
        named = [(key, text) for key, text in uploads if text is not None]
        return named + [(key, text) for key, text in sources if is_store_url(text)]
