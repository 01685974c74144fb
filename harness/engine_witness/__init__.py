# SPDX-License-Identifier: Apache-2.0
"""The gradient witness: gradients and updates of any DeepSpeed engine, computed again from samples.

It knows engines, and nothing else of the harness: `harness.runtime.engine_checks` runs it in the loop of the harness,
`harness.engine_watch` in anybody's. It applies no patch and builds no op.
"""
