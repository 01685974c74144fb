"""PP: PipelineModule."""
