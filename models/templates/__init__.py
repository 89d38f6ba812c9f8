"""Files that are shipped as they are, beside exported weights or into a fresh process."""
