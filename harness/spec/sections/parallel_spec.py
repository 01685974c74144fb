# SPDX-License-Identifier: Apache-2.0
"""`parallel`: ranks that share a layer, the stages or a sequence."""

from typing import Annotated

from pydantic import Field

from harness.facts.pipeline_support import PARTITION_METHOD_PATTERN
from harness.spec.sections.section import Positive, Section


class ParallelSpec(Section):
    """Degrees of parallelism; the data-parallel degree follows from the world size."""

    tensor_parallel_size: Positive = 1
    """Ranks that share each layer: DeepSpeed's AutoTP, or inside pipeline stages the harness's own layers."""
    pipeline_parallel_size: Positive = 1
    """DeepSpeed PipelineModule: stages."""
    pipeline_partition_method: Annotated[str, Field(pattern=PARTITION_METHOD_PATTERN)] = "parameters"
    """DeepSpeed's partition method of layers over stages: balanced by `parameters`, by their number (`uniform`), or by
    the number of layers whose class matches a pattern (`type:DecoderLayer`).
    """
    sequence_parallel_size: Positive = 1
    """Ulysses: ranks that share each sequence."""
