# SPDX-License-Identifier: Apache-2.0
"""What of a run decides its memory and time, as plain values."""
