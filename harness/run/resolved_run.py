# SPDX-License-Identifier: Apache-2.0
"""A run spec with every derived number: ranks, parallel sizes and batch sizes. Arithmetic only: a number that does not
work out stays None, and a gate says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.facts.environment_variables import is_secret
from harness.run.batch_sizes import BatchSizes, resolve_batch_sizes
from harness.run.objective_facts import facts_of
from harness.run.tuned_default import TunedDefault
from harness.secret_text import HIDDEN
from harness.spec.hostfile import Cluster
from harness.spec.run_spec import InputKind, RunSpec
from harness.spec.sections.training_spec import CheckpointingSpec

if TYPE_CHECKING:
    from harness.facts.model_lookup import ModelLookup

FORMAT_VERSION = 2
_LOSS_CHUNK_SIZE = "train.loss_chunk_size"
ATTN_IMPLEMENTATION = "model.attn_implementation"
_CHECKPOINTING = "train.gradient_checkpointing"
_UNKNOWN_LABELS = 2
"""Labels of a plan where the settings have no number: only the data does."""


class ParallelDims(NamedTuple):
    """The sizes of the parallel groups: world = data x tensor x pipeline x sequence. `world_size` is None while
    unknown.
    """

    world_size: int | None
    tensor: int
    pipeline: int
    sequence: int

    @property
    def model_parallel_size(self) -> int:
        """Ranks that work on one micro-batch together."""
        return self.tensor * self.pipeline * self.sequence

    @property
    def autotp(self) -> int:
        """The degree of DeepSpeed's AutoTP; in a pipeline the harness's own layers are tensor parallel instead."""
        return self.tensor if self.pipeline == 1 else 1

    @property
    def data(self) -> int | None:
        """Data-parallel ranks, or None where the world is unknown or does not divide."""
        if (
            self.world_size is None
            or self.world_size % self.model_parallel_size
            or self.world_size < self.model_parallel_size
        ):
            return None
        return self.world_size // self.model_parallel_size


class ResolvedRun(NamedTuple):
    """A run: the spec, the cluster if one is known, and the numbers that follow from both."""

    spec: RunSpec
    name: str
    cluster: Cluster | None
    parallel_dims: ParallelDims
    batch: BatchSizes
    kind: InputKind = "spec"
    tuned_defaults: tuple[TunedDefault, ...] | None = None
    """Values for keys that the spec leaves out; None until `plan.tuned_defaults` fills them in."""
    found_model: ModelLookup | None = None
    """The model as its check found it, for all who ask after that; not in `to_json`."""
    trainer: str = ""
    """Whose loop trains it, a key of `plan.trainer_loop.TRAINERS`; empty for that of the harness."""
    loop_optimizer: str = ""
    """The name of its optimizer there; empty for the default."""

    def find_model(self, base_dir: Path | None = None, *, build: bool = False, **how: bool) -> ModelLookup:
        """The facts of the run's model, looked up once; the arguments are those of `facts.find_model`."""
        from harness.facts.model_lookup import find_model

        found, named = self.found_model, self.spec.model
        if found is not None and (found.facts is not None or not (build or any(how.values()))):
            return found
        found = find_model(named.name_or_path, named.config, base_dir, named.revision, build=build, **how)
        if found.facts is None or not facts_of(self.spec.objective).has_label_head:
            return found
        labels = self.spec.classification
        outputs = labels.num_labels or len(labels.label_names) or _UNKNOWN_LABELS
        facts = found.facts.with_label_head(1 if self.spec.objective == "reward" else outputs)
        return found._replace(facts=facts)

    @property
    def loop_makes_unfused(self) -> bool:
        """Does another loop make an unfused Adam? The Trainer's is fused by default (transformers 5, torch 2.8)."""
        name = self.loop_optimizer or ("" if self.trainer == "accelerate" else "fused")
        return bool(self.trainer) and "fused" not in name and "optimizer" not in self.spec.deepspeed

    @property
    def step_threads(self) -> int:
        """Threads of a rank's CPU optimizer; 0 where no launcher sets them. `accelerate launch` sets one, torchrun does
        for two ranks of a host (read in accelerate 1.15 and torch 2.13).
        """
        torchrun = ("llama-factory", "swift") if (self.parallel_dims.world_size or 1) > 1 else ()
        one = self.trainer in ("accelerate", "axolotl", *torchrun)
        named = str(self.spec.launch.env.get("OMP_NUM_THREADS", int(one)))
        return int(named) if named.isdecimal() else 0

    @property
    def sequences_a_row(self) -> int:
        """Sequences that a rank computes at once for each row of its micro-batch: two of a pair."""
        return 2 if facts_of(self.spec.objective).is_paired else 1

    @property
    def loss_chunk_size(self) -> int:
        """Tokens whose logits exist at once: the spec's, else the tuned default; 0 for all of a micro-batch."""
        spec_size = self.spec.train.loss_chunk_size
        defaults = (int(default.value) for default in self.tuned_defaults or () if default.key == _LOSS_CHUNK_SIZE)
        return next(defaults, 0) if spec_size is None else spec_size

    @property
    def attn_implementation(self) -> str | None:
        """The attention kernel: the spec's, or the one chosen for `auto` (`sdpa` until then). None: that of
        `transformers`.
        """
        value = self.spec.model.attn_implementation
        choices = (str(default.value) for default in self.tuned_defaults or () if default.key == ATTN_IMPLEMENTATION)
        return next(choices, "sdpa") if value == "auto" else value

    @property
    def checkpointing(self) -> CheckpointingSpec | None:
        """The layers that recompute their activations, None for none. `auto`: the tuned default's, else all layers."""
        value: Any = self.spec.train.gradient_checkpointing
        if value == "auto":
            value = next((each.value for each in self.tuned_defaults or () if each.key == _CHECKPOINTING), True)
            value = CheckpointingSpec(**value) if isinstance(value, dict) else value
        return CheckpointingSpec() if value is True else value or None

    @property
    def num_mlp_tiles(self) -> int:
        """Tiles of a rank's micro-batch in the MLP of a layer, at the longest rows; 1 for all of it at once."""
        size, micro_batch = self.spec.train.mlp_tile_size, self.batch.micro_batch
        if size is None or micro_batch is None:
            return 1
        rows = micro_batch * self.sequences_a_row
        return -(-rows * -(-self.spec.data.max_length // self.parallel_dims.sequence) // size)

    def to_json(self) -> dict[str, Any]:
        """The content of `spec.resolved.json`, which every rank reads and nobody derives again. Secrets
        of `launch.env` are withheld: ranks have them in their environment.
        """
        body: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "spec": _hide_secrets(self.spec.model_dump(mode="json")),
            "written": _hide_secrets(self.spec.model_dump(mode="json", exclude_unset=True)),
            "hosts": [[host.name, host.slots] for host in self.cluster.hosts] if self.cluster else None,
            "degrees": {
                "world": self.parallel_dims.world_size,
                "data": self.parallel_dims.data,
                "tensor": self.parallel_dims.tensor,
                "pipeline": self.parallel_dims.pipeline,
                "sequence": self.parallel_dims.sequence,
            },
            "batch": {
                "per_device": self.batch.micro_batch,
                "accumulation": self.batch.accumulation,
                "global": self.batch.global_batch,
            },
            "tuned_defaults": None
            if self.tuned_defaults is None
            else [default.to_json() for default in self.tuned_defaults],
        }
        body["sha256"] = _content_digest(body)
        return body

    @staticmethod
    def from_json(body: dict[str, Any], *, any_version: bool = False) -> ResolvedRun:
        """The inverse of `to_json`. Raises ValueError for a text of another format and for an edited one.

        A run of another version of the harness is an error too, since its ranks would train with other defaults; with
        `any_version`, for reports, it is read with the defaults that it had.
        """
        if body.get("format_version") != FORMAT_VERSION:
            raise ValueError(f"format_version {body.get('format_version')!r}, this harness reads {FORMAT_VERSION}")
        content = {name: value for name, value in body.items() if name != "sha256"}
        if _content_digest(content) != body.get("sha256"):
            raise ValueError("its sha256 does not match its content: it was edited or not fully written")
        spec = RunSpec.model_validate(body["written"])  # the rendered JSON depends on which keys the user wrote
        defaults_now = spec.model_dump(mode="json")
        if defaults_now != body["spec"]:
            if not any_version:
                raise ValueError("its defaults differ from those of this harness: another version wrote it")
            if not _has_values(defaults_now, body["spec"]):
                spec = RunSpec.model_validate(body["spec"])
        degrees, batch = body["degrees"], body["batch"]
        defaults = body["tuned_defaults"]
        return ResolvedRun(
            spec=spec,
            name=body["name"],
            cluster=Cluster.from_pairs(body["hosts"]) if body["hosts"] else None,
            parallel_dims=ParallelDims(degrees["world"], degrees["tensor"], degrees["pipeline"], degrees["sequence"]),
            batch=BatchSizes(batch["per_device"], batch["accumulation"], batch["global"]),
            tuned_defaults=None if defaults is None else tuple(TunedDefault.from_json(default) for default in defaults),
        )


def _hide_secrets(spec: dict[str, Any]) -> dict[str, Any]:
    env = spec.get("launch", {}).get("env", {})
    env.update({name: HIDDEN for name, value in env.items() if is_secret(name, value)})
    return spec


def _has_values(new: Any, old: Any) -> bool:
    """Whether every key of `old` has the same value in `new`, which may have more keys."""
    if isinstance(new, dict) and isinstance(old, dict):
        return all(key in new and _has_values(new[key], value) for key, value in old.items())
    return bool(new == old)


def _content_digest(body: dict[str, Any]) -> str:
    import hashlib

    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def resolve_run(
    spec: RunSpec,
    *,
    name: str = "run",
    cluster: Cluster | None = None,
    world_size: int | None = None,
    kind: InputKind = "spec",
) -> ResolvedRun:
    """Derive ranks, parallel sizes and batch sizes.

    The world is, in this order: `world_size` (a command-line override), the hostfile's slots, `launch.num_gpus`,
    `cluster.num_nodes` x `cluster.gpus_per_node`; else unknown.
    """
    parallel_dims = resolve_parallel_dims(spec, cluster=cluster, world_size=world_size)
    return ResolvedRun(
        spec=spec,
        name=spec.name or name,
        cluster=cluster,
        parallel_dims=parallel_dims,
        batch=resolve_batch_sizes(
            spec.train.per_device_train_batch_size,
            spec.train.gradient_accumulation_steps,
            spec.train.global_batch_size,
            parallel_dims.data,
        ),
        kind=kind,
    )


def resolve_parallel_dims(spec: RunSpec, *, cluster: Cluster | None, world_size: int | None) -> ParallelDims:
    """The sizes of the parallel groups, of a world as in `resolve_run`."""
    world = world_size
    if world is None and cluster is not None:
        world = cluster.num_slots
    if world is None:
        world = spec.launch.num_gpus
    if world is None and spec.cluster.gpus_per_node:
        world = spec.cluster.gpus_per_node * (spec.cluster.num_nodes or 1)
    parallel = spec.parallel
    return ParallelDims(
        world, parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.sequence_parallel_size
    )
