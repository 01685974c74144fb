"""Programs of our own that run as child processes: rehearsals, trials, benchmarks, previews."""
