# SPDX-License-Identifier: Apache-2.0
"""Pipeline, sequence and tensor parallelism, data efficiency, rollouts. `harness.diagnosis.messages` leads to them."""

from __future__ import annotations

from harness.diagnosis.causes.zero_failures import INTERNAL_PAGE
from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG130",
        "pipeline-tensors-refused",
        "the pipeline cannot send the output of a layer, or the batch, to the next stage",
        "let each layer take and return one tensor or a tuple of tensors, and each batch be `(inputs, labels)` of "
        "tensors or tuples of them; with `pipe_partitioned` or `grad_partitioned` only the first may require a "
        "gradient",
        (),
    ),
    FailureCause(
        "LG131",
        "pipeline-module-refused",
        "DeepSpeed refused the layers or the topology of the `PipelineModule`",
        "give `PipelineModule` a list of `torch.nn.Module`s or `LayerSpec`s of them, `num_stages` or a topology "
        "whose axes multiply to the number of ranks, and `partition_method` `parameters`, `uniform` or "
        "`type:REGEX`",
        (),
    ),
    FailureCause(
        "LG132",
        "pipeline-bookkeeping",
        "an internal check of the pipeline engine failed",
        "keep shapes and number of tensors the same for every micro-batch (or call `reset_activation_shape()` when "
        "they change), let every rank of a stage read the same data, and set `pipe_partitioned` and "
        "`grad_partitioned` to false; report an error that stays to DeepSpeed with the traceback of the first rank "
        "that fails",
        (),
        page=INTERNAL_PAGE,
    ),
    FailureCause(
        "LG133",
        "dualpipev-refused",
        "the DualPipeV schedule does not support this setting",
        "give a `DualPipeVModule`, at least twice as many micro-batches (`gradient_accumulation_steps`) as "
        "pipeline stages, and no partitioned activations, dynamic shapes or bool tensors",
        (),
    ),
    FailureCause(
        "LG134",
        "data-efficiency-refused",
        "the configuration of the curriculum or of random layer-token dropping is incomplete",
        "add the key that the message names to `data_efficiency` (or `curriculum_learning`), or switch the block off",
        (),
    ),
    FailureCause(
        "LG135",
        "indexed-dataset-damaged",
        "the index of an indexed dataset is damaged, has another format, or was read past its end",
        "build the dataset again (`.bin` and `.idx` must be from one build and have one dtype), and check that the "
        "run that wrote it had ended",
        (),
    ),
    FailureCause(
        "LG136",
        "data-analysis-failed",
        "DeepSpeed's data analyzer could not finish",
        "check that every map worker has finished and wrote to the same folder, that the metric function returns an "
        "integer tensor of the type given for it, and run the analysis again into an empty folder",
        (),
    ),
    FailureCause(
        "LG137",
        "dynamic-batching-refused",
        "DeepSpeed cannot build batches of variable size with this configuration",
        "check `data_efficiency.data_sampling.dynamic_batching`: `max_tokens` must hold the longest sample, and "
        "the functions that it needs must be given; remove the cached sequence lengths when the dataset has "
        "changed",
        (),
    ),
    FailureCause(
        "LG138",
        "sequence-groups-refused",
        "the sequence-parallel process groups cannot be created, or do not exist",
        "set a `sequence_parallel_size` that divides the number of ranks, and set the groups up once, after "
        "`deepspeed.init_distributed()` and before the model",
        (),
    ),
    FailureCause(
        "LG139",
        "sequence-batch-refused",
        "Ulysses sequence parallelism cannot split this batch or this attention",
        "let the collator add `position_ids`, pad every sequence to a multiple of the sequence degree, and keep "
        "all tensors of a batch at the shape of `input_ids`",
        (),
    ),
    FailureCause(
        "LG140",
        "tp-model-init-conflicts",
        "`deepspeed.tp_model_init` and the DeepSpeed JSON, or two calls of it, disagree",
        "set the degree, the dtype and the group to the same values in both, or leave them out of the JSON",
        (),
    ),
    FailureCause(
        "LG141",
        "hybrid-engine-refused",
        "the hybrid engine does not support this setting",
        "leave out the setting that the message names, or raise `hybrid_engine.max_out_tokens`",
        (),
    ),
    FailureCause(
        "LG142",
        "rollout-refused",
        "a rollout got requests or settings that it does not support",
        "check the arguments that the message names; the default `generate()` path has none of these limits",
        (),
    ),
    FailureCause(
        "LG143",
        "loss-arguments-refused",
        "a loss or a tiled computation of DeepSpeed got tensors or options that it does not support",
        "check the shapes, dtypes and options that the message names at the call in the last frame of your own code",
        (),
    ),
    FailureCause(
        "LG144",
        "layer-arguments-refused",
        "a layer of DeepSpeed (TiledLinear, Domino) got sizes that it does not support",
        "check the sizes that the message names at the call in the last frame of your own code: splits must be "
        "between 1 and the number of features, and sizes a multiple of the tensor degree",
        (),
    ),
    FailureCause(
        "LG145",
        "sparse-gradient-refused",
        "a setting does not support sparse gradients",
        "use embeddings with `sparse=False` and no `sparse_gradients: true`",
        (),
    ),
)
