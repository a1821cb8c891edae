"""Terms that tasks are made of: read them, use them, copy them."""
