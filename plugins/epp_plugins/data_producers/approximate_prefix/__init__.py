"""
Remember who was sent which prompt, and expect it in that KV cache.

An approximation that asks no model server anything: a prompt is cut into blocks, each block is
hashed together with all before it, and an index says which endpoints were sent a block lately.
Blocks that an engine has evicted meanwhile are still expected there, blocks that reached it past
this picker are not.

`producer` is the plugin, `blocks` cuts and hashes prompts, `index` remembers, and `stretch` has the
pieces that it remembers in. Only the producer is for others.
"""

from epp_plugins.data_producers.approximate_prefix.producer import ApproximatePrefixProducer

__all__ = ["ApproximatePrefixProducer"]
