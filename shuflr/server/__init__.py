"""Serving corpora to many clients. From below: `memory` (who may hold how much), `counts` (records per frame, kept with
the file), `catalog` (what is served), `streaming` (a request becomes bytes), and the edges that send them.
"""
