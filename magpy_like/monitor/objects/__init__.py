"""Python objects: variables, the places that hold them, reads and writes."""
