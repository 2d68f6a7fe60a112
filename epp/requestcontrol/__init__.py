"""One request from raw bytes to a routing decision, and its response to the end."""
