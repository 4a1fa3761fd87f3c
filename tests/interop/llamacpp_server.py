"""Serves a GGUF model with llama.cpp's own HTTP server on a free loopback port. Runs in the peer environment.

    python llamacpp_server.py FILE.gguf [SLOTS]

Prints the base URL once the model is loaded, then serves until SIGTERM or until the process that started it is gone,
so that a killed test run leaves no server behind.
"""

import os
import signal
import sys
import time

import xllamacpp

CONTEXT_PER_SLOT = 512


def parameters(model, slots):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the system picks one; Server.listening_address tells which
    params.endpoint_metrics = True
    params.n_parallel = slots
    params.n_ctx = CONTEXT_PER_SLOT * slots
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.cpuparams.poll = 0  # no spinning: the machine is shared with the tests
    params.n_gpu_layers = 0
    params.fit_params = False
    params.cache_ram_mib = 0
    params.sampling.seed = 1
    return params


def main():
    parent = os.getppid()
    # The engine's threads are in the middle of something; there is nothing to save, so leave without unwinding them.
    signal.signal(signal.SIGTERM, lambda signum, frame: os._exit(0))
    server = xllamacpp.Server(parameters(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4))
    print(server.listening_address, flush=True)
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


if __name__ == "__main__":
    main()
