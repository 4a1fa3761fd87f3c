"""Corpora far larger than memory, streamed to training workers in seed-deterministic shuffled order.

The compiled core (ChaCha20, and what grows on it) is `shuflr._native`; importing this package starts nothing.
"""
