"""Records: lookup, dispatch, misses, and segments of programs that split."""
