"""Streams from a server. From below: `address` and `request` (what is asked of whom; pure), `connect` (a socket to
there), `wire_stream` and `http_stream` (pieces of one connection), `ahead` (who reads when), `feed` (a stream that
outlives its connections), `dataset` (what the user holds).

Importing starts nothing: sockets and threads are made by the process that iterates, and belong to it.
"""
