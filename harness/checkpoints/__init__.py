# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as folders of files: manifests, verification, the newest complete one, retention.

Pure standard library: unpickles nothing and knows no torch. `harness.runtime.checkpoint` reads and writes the tensors.
"""
