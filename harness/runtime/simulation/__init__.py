# SPDX-License-Identifier: Apache-2.0
"""The real DeepSpeed engine at full size on a simulated CUDA device: fake tensors that say `cuda:0`, no values.

`native_library` must be loaded before torch; nothing here is imported by a rank that trains.
"""
