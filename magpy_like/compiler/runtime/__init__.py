"""What compiled graphs need at run time, and the cache that keeps them between runs."""
