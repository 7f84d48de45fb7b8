"""Guard generation (MagPy, section 4.2)."""
