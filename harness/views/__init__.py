"""Values as text, JSON, GitHub annotations, SARIF and HTML: the only package that formats."""
