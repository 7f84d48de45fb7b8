"""Programs that are not static: split points and what follows them."""
