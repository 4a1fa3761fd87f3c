"""Every row through a model, landed as parquet. Run it twice: the second time nothing is sent.

    python examples/quickstart.py                                      # against a simulated engine
    python examples/quickstart.py http://localhost:8000/v1 my-model    # against yours
"""

import sys

from saturate import pump, read_output
from saturate.simulate import Simulator

ROWS = [{"text": f"What is {n} squared?"} for n in range(50)]


def run(endpoint, model, output):
    def to_request(row):
        return {"model": model, "messages": [{"role": "user", "content": row["text"]}], "max_tokens": 16}

    def parse(row, response):
        return {"question": row["text"], "answer": response["choices"][0]["message"]["content"]}

    stats = pump(ROWS, to_request, parse, endpoint=endpoint, output=output)
    rows = list(read_output(output))
    print(f"{stats.rows_processed} rows now, {stats.rows_done_prior} before; {len(rows)} in {output}")


if __name__ == "__main__":
    output = "quickstart-out"
    if len(sys.argv) == 3:
        run(sys.argv[1], sys.argv[2], output)
    else:
        with Simulator(latency_s=0.05) as server:
            run(server.endpoint, "simulated", output)
