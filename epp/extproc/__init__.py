"""The wire to Envoy: the ext_proc exchange, sans-I/O, and the doors that carry it."""
