# SPDX-License-Identifier: Apache-2.0
"""A `transformers` decoder as the layers of a DeepSpeed `PipelineModule`: their names, weights, loss and steps."""
