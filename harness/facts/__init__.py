# SPDX-License-Identifier: Apache-2.0
"""Facts as data: DeepSpeed's keys, models, devices, environment variables."""
