"""Bytes on disk: record-aligned seekable zstd, its readers and writers, other inputs, indexes and fingerprints.

A record is the bytes up to and including 0x0A. Nothing in this room knows about order.
"""
