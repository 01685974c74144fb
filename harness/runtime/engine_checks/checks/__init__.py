# SPDX-License-Identifier: Apache-2.0
"""One file a check. `harness.runtime.engine_checks.check_list` has them all."""
