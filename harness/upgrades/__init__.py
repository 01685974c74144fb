"""What a configuration means differently under another DeepSpeed release: refused, moved, mended, newly read.

Made of what is there already: both releases are asked of the gates and the typed keys, and the answers compared
(`compare`); `changes` holds what neither can tell, a row a change.
"""

from __future__ import annotations

from harness.upgrades.release_comparison import compare_releases

__all__ = ["compare_releases"]
