"""From a recording to a record: guard, mock and operator graph (MagPy, section 4)."""
