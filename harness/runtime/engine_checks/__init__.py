# SPDX-License-Identifier: Apache-2.0
"""A run checks that its own engine has what the spec asks for, in the first minute instead of after a week.

One file a check in `checks/`. A check observes a few plain values on each rank. One small all-gather brings them
together, and every rank evaluates the same values: either all ranks stop or none.

`check_runner` runs them in the loop of the harness, `harness.engine_watch` some of them in anybody's.
"""
