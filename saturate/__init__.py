"""Every row of a dataset through a model behind an OpenAI-compatible endpoint, landed as a dataset.

`pump` is the whole job in one call; `through` is its middle, for loops of your own; `AdaptiveLimiter` is the window
alone, for requests you send yourself. Blocking everywhere: no event loop. Importing starts nothing.
"""

from saturate.agent import AGENT_ENV_VARS, USER_AGENT, __version__, agent_mode
from saturate.drain import Stats, drain
from saturate.flow.client import AdaptiveClient
from saturate.flow.controller import Auto, Fixed, Obs
from saturate.flow.limiter import AdaptiveLimiter
from saturate.flow.pacer import Pace
from saturate.flow.through import Done, through
from saturate.http.errors import FatalTransportError
from saturate.http.request import Request, make_json_request, make_multipart_request
from saturate.pump import pump
from saturate.rows import content_id, prepare_ahead, shard_select, skip_done, stream
from saturate.sinks import FileSink, ParquetSink, SinkError, existing_ids, read_output

__all__ = [
    "AGENT_ENV_VARS",
    "AdaptiveClient",
    "AdaptiveLimiter",
    "Auto",
    "Done",
    "FatalTransportError",
    "FileSink",
    "Fixed",
    "Obs",
    "Pace",
    "ParquetSink",
    "Request",
    "SinkError",
    "Stats",
    "USER_AGENT",
    "__version__",
    "agent_mode",
    "content_id",
    "drain",
    "existing_ids",
    "make_json_request",
    "make_multipart_request",
    "prepare_ahead",
    "pump",
    "read_output",
    "shard_select",
    "skip_done",
    "stream",
    "through",
]
