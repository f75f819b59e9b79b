"""Generation with Hugging Face transformers: continuous batching over slots of one key-value cache.

It is this project's own because runs repeat to the last bit with it (noise keyed by the request, batches that do not
depend on threads), it samples from the trainer's very weights without a copy, and it starts at once on a laptop. It
goes when the continuous batching of transformers passes the tests that every engine passes, on CPUs, and is as fast.
"""
