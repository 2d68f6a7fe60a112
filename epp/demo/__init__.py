"""The demo: simulators, the picker and a real Envoy on loopback, under a mixed load."""
