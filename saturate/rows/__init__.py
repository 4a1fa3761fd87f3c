"""A row is born: any iterable becomes a lazy stream of `(id, row)`, less what an output already holds."""

from saturate.rows.ids import content_id
from saturate.rows.prepare import prepare_ahead
from saturate.rows.select import skip_done
from saturate.rows.stream import shard_select, stream

__all__ = ["content_id", "prepare_ahead", "shard_select", "skip_done", "stream"]
