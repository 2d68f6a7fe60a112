"""The state of the pool: the datastore, and the collector that keeps it fresh."""
