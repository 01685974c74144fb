# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's compiled ops: building them here and on the other hosts."""
