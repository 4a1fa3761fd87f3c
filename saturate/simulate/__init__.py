"""A simulated model server: real HTTP, real threads, a continuous-batching engine, and faults on request. No model.

For tests of a pipeline, and for measuring a client::

    with Simulator(tokens=20, faults=Faults("error:rate=0.05,status=503", "hang:attempts=1")) as server:
        ...  # anything that talks to server.endpoint

`python -m saturate.simulate` is the same in a process of its own. Read `engine` for the model, `faults` for what can go
wrong, `responses` for what an answer says and `ledger` for how to prove what was paid twice.
"""

from saturate.simulate.faults import Fault, Faults
from saturate.simulate.responses import answer, digest
from saturate.simulate.server import Simulator

__all__ = ["Fault", "Faults", "Simulator", "answer", "digest"]
