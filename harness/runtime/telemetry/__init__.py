"""What a run measures of itself: time, memory, work and the other ranks, and where that is told."""
