"""Did you mean: the known name that is nearest to a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The closest of `known` by difflib's ratio, at least 0.6; case, hyphens and underscores do not count."""
    from difflib import get_close_matches

    plain = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    wanted = name.lower().replace("-", "_")
    squeezed = {key.replace("_", ""): key for key in plain}
    if wanted.replace("_", "") in squeezed:
        return plain[squeezed[wanted.replace("_", "")]]
    found = get_close_matches(wanted, plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None
