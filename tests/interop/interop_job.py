"""The same job for both programs: how a row becomes a request and an answer becomes columns.

Loaded by the tests and by `drive.py` inside either program's interpreter, so it imports neither of them.

A row is `{"k": key, "text": text}` and may carry `"say"`, what its parse shall do: "raise", "list" (not a dict),
"float" (a float for the integer column), or the name of an extra column to fill in.
"""

import datetime

MODEL = "recording"


def to_request(row):
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": row["text"]}],
        "user": str(row.get("k", "")),
        "max_tokens": 16,
    }


def parse(row, response):
    answer = response["choices"][0]["message"]["content"]
    say = row.get("say")
    if say == "raise":
        raise ValueError("no field in " + answer)
    if say == "list":
        return [answer]
    columns = {
        "answer": answer,
        "n": len(answer),
        "score": len(answer) / 4,
        "flag": len(answer) % 2 == 0,
        "raw": answer.encode("utf-8"),
        "letters": list(answer[:3]),
        "meta": {"first": answer[:1], "size": {"characters": len(answer)}},
        "at": datetime.datetime(2024, 5, 6, 7, 8, 9, len(answer), tzinfo=datetime.timezone.utc),
        "nothing": None,
    }
    if say == "float":
        columns["n"] = 0.5
    elif say:
        columns[say] = {"text": answer, "sizes": [len(answer), None]}
    return columns


def parse_declared(row, response):
    """Columns of `DECLARED`: "say" = "big" does not fit its int32, "extra" has a column outside the schema."""
    answer = response["choices"][0]["message"]["content"]
    columns = {"n": 2**40 if row.get("say") == "big" else len(answer), "t": len(answer) / 4, "s": answer}
    if row.get("say") == "extra":
        columns["zz"] = 1
    return columns


def parse_given(row, response):
    """The columns that the row itself brings: any Python value may be among them."""
    return row["give"]


DECLARED = (("id", "string"), ("error", "string"), ("n", "int32"), ("t", "float32"), ("s", "large_string"))

PARSERS = {"parse": parse, "parse_declared": parse_declared, "parse_given": parse_given}


def answer_to(text):
    """What the recording server says to a prompt; the tests compute the expected columns from it."""
    return text.upper()[::-1]
