"""The HTTP service: API, database, artifact store, command line. Never imports torch."""
