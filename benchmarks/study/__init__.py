"""What the studies share: entries that are jobs of the service, the file that remembers them, and who runs them."""
