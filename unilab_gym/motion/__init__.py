"""Reference motions: files, conversion, packed tables, sampling, the command that follows them."""
