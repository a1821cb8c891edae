"""Files: leaves that read and write them."""
