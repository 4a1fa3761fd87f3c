"""A client of the wire that does nothing by itself, a server for it, and the records in what it got."""

import socket

from shuflr import core
from shuflr.server.catalog import Catalog
from shuflr.server.memory import Memory
from shuflr.server.wire_edge import WireEdge
from shuflr.wire import ClientHello, Decoder, OpenStream, PlainBatch, RawFrame, ServerHello, ZstdBatch, encode


class Client:
    """One connection, message by message. speak: say hello at once, asking for what is given."""

    def __init__(self, address, speak=True, **asked):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.sock = socket.socket(family)
        self.sock.settimeout(60)
        self.sock.connect(address)
        self.decoder = Decoder(ServerHello)
        if speak:
            capabilities = asked.pop("capabilities", 7)
            self.say(ClientHello(OpenStream(**{"dataset_id": "corpus", **asked}).encode(), capabilities))

    def say(self, message):
        self.sock.sendall(encode(message))

    def next(self):
        """The next message, its data copied; None when the server has closed."""
        while (message := self.decoder.next()) is None:
            room = self.decoder.room()
            got = self.sock.recv_into(room)
            if not got:
                assert self.decoder.pending == 0
                return None
            self.decoder.received(got)
        if hasattr(message, "data"):
            message.data = bytes(message.data)
        return message

    def rest(self):
        found = []
        while (message := self.next()) is not None:
            found.append(message)
        return found

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.sock.close()


class Serving:
    """An edge over one corpus; everything it started is gone when the test ends."""

    def __init__(self, path, memory=None, **options):
        self.catalog = Catalog([("corpus", path)], count=False)
        self.edge = WireEdge(self.catalog, memory or Memory(), **options)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.edge.serve(listener)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.edge.drain(10.0)
        assert not self.edge._connections and not self.edge._pulse.is_alive()


def records_of(messages):
    """The records of raw frames, batches and zstd batches."""
    work, out = core.Work(), []
    for message in messages:
        if isinstance(message, RawFrame):
            work.decode(message.data)
            work.split(message.key)
            block = bytes(work.gather(prefix=True))
            out += [record + b"\n" for record in PlainBatch(0, 0, work.records, block).unpacked()]
        elif isinstance(message, ZstdBatch):
            body = bytes(work.decode(message.data))
            out += [record + b"\n" for record in PlainBatch(0, 0, message.records, body).unpacked()]
        elif isinstance(message, PlainBatch):
            out += [record + b"\n" for record in message.unpacked()]
    return out
