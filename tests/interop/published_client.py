"""Runs in the published client's environment: iterates the datasets that standard input names, one JSON list a line
([url, keyword arguments]), and answers each with what it got, as JSON: count, SHA-256 of the records each followed by
LF, transport, or the error."""

import hashlib
import json
import sys

from shuflr_client import Dataset

for line in sys.stdin:
    url, options = json.loads(line)
    digest, count = hashlib.sha256(), 0
    answer = {}
    try:
        dataset = Dataset(url, **options)
        for record in dataset:
            digest.update(record + b"\n")
            count += 1
        answer["transport"] = dataset.transport
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps({**answer, "count": count, "sha256": digest.hexdigest()}), flush=True)
