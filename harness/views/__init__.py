# SPDX-License-Identifier: Apache-2.0
"""Values as text, JSON, GitHub annotations, SARIF and HTML: the only package that formats."""
