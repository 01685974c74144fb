"""PR: precision."""
