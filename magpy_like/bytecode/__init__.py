"""What a code object says by itself: control flow, live locals, facts per Python version."""
