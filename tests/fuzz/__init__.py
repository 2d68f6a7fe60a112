"""Fuzzing: what no test thought of, for as long as one likes; `make fuzz`."""
