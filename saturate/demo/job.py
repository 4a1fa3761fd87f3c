"""The demo's pump, in a process of its own so that it can be killed. `python -m saturate.demo.job` with a JSON setup.

It is what a user would write: two functions and one call. Only the note of each answered row, which lets the demo
decide when to kill it and count what was paid twice, is the demo's.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from saturate import pump
from saturate.demo.docstrings import docstring_rows


def main(setup: dict[str, Any]) -> None:
    """Runs the job: endpoint, model, output, limit, answered (a file that gets a line for each answered row)."""
    answered = os.open(setup["answered"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def to_request(row: dict[str, Any]) -> dict[str, Any]:
        prompt = f"Say in one sentence what this does:\n\n{row['text'][:4000]}"
        return {
            "model": setup["model"],
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 48,
            # Some docstrings are the same word for word; with this the engine's record tells their rows apart.
            "user": row["name"],
        }

    def parse(row: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
        os.write(answered, f"{row['name']}\n".encode())
        return {"name": row["name"], "summary": response["choices"][0]["message"]["content"]}

    key = os.environ.get("OPENAI_API_KEY")
    pump(
        docstring_rows(setup["limit"]),
        to_request,
        parse,
        endpoint=setup["endpoint"],
        output=setup["output"],
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
