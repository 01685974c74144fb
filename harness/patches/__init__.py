# SPDX-License-Identifier: Apache-2.0
"""Changes inside DeepSpeed and its dependencies, one file each."""
