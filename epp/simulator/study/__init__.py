"""
Studies: the engine in virtual time, and what its figures say.

A study makes a load from a seed, runs it through one engine per variant and lays the figures side
by side: `lora` beside a published benchmark, `priority` beside one another. A day of the simulated
server takes seconds here, and the same seeds give the same figures wherever and on however many
processes they are run.
"""
