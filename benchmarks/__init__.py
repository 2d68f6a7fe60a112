"""
Benchmarks: what a request costs, in the picker process and in Envoy, and what the pick alone costs.

They measure the shipped command behind a real Envoy, as separate processes on loopback, and beside
it a floor: a picker that decides nothing. Figures of one run are compared with each other, because
those of two machines, or of two moments of a shared one, are not comparable.
"""
