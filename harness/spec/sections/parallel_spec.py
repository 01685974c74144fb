# SPDX-License-Identifier: Apache-2.0
"""`parallel`: ranks that share a layer, the stages or a sequence."""

from typing import Annotated

from pydantic import Field

from harness.facts.pipeline_support import PARTITION_METHOD_PATTERN
from harness.spec.sections.section import Positive, Section


class ParallelSpec(Section):
    """Degrees other than data parallelism; the rest of the ranks is data-parallel."""

    tensor_parallel_size: Positive = 1
    """DeepSpeed AutoTP: ranks that share each layer."""
    pipeline_parallel_size: Positive = 1
    """DeepSpeed PipelineModule: stages."""
    pipeline_partition_method: Annotated[str, Field(pattern=PARTITION_METHOD_PATTERN)] = "parameters"
    """How layers are spread over the stages, in DeepSpeed's words: alike in `parameters`, alike in number
    (`uniform`), or alike in layers whose class matches a pattern (`type:DecoderLayer`).
    """
    sequence_parallel_size: Positive = 1
    """Ulysses: ranks that share each sequence."""
