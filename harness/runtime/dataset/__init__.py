"""From what a user has to what is drawn: sources, records, tokens, rows, and the cache that holds them.

Nothing here knows of ranks, batches or DeepSpeed: `harness data` uses it in a process of its own.
"""
