"""From a file to findings: loading, gates, fixes, and the selection of rules."""
