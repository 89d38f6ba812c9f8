"""Jobs: specification, transitions, relay, routes."""
