"""Mock generation: reconstruction of values, side effects, roll-back."""
