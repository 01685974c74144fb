# SPDX-License-Identifier: Apache-2.0
"""The program `harness`: one file a command. Each parses, calls one function, prints one view and exits."""
