"""Serving corpora to many clients. From below: `memory` (who may hold how much), `counts` (records per frame, kept with
the file), `catalog` (what is served), `plan` (what a request means), `decoded` and `raw` (a request becomes bytes; both
by way of `streaming`), and the edges that send them.
"""
