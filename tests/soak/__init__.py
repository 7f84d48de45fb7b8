"""Long runs: training, inference, resets, threads, interrupts; resources must not grow."""
