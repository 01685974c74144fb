# SPDX-License-Identifier: Apache-2.0
"""Published measurements, and which of them no constant may be fitted to."""
