"""One manager a file; each owns one part of a step and its carriers."""
