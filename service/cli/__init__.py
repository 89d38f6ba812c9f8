"""The vitailor command line: a client of the public API."""
