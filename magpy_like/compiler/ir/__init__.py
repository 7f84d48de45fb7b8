"""The loop IR: define-by-run loop bodies over SymPy index expressions (PyTorch 2, section 4.3)."""
