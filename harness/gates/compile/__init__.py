"""CC: torch.compile under DeepSpeed (`compile`)."""
