"""One native run of the program, watched instruction by instruction (MagPy, sections 3 and 5)."""
