"""A device agent: measures networks on its machine for a server elsewhere, over HTTP alone."""
