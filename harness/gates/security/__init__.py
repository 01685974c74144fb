"""SE: what a file asks of the machine that runs it."""
