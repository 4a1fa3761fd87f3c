"""Drives whichever `saturate` its interpreter has: calls come in on standard input, answers go out on standard output.

The same script runs ours and the public project's, which share their public names. A call is a pickled
`(name, arguments, keywords)`, an answer a pickled `(True, value)` or `(False, text)`; pickle keeps bytes, NaN, dates
and tuples as they are. Ends when standard input does, so it never outlives the test that started it. Standard output
is kept for the answers: anything a program prints goes to standard error.
"""

import dataclasses
import inspect
import os
import pickle
import sys
import traceback

import interop_job
import pyarrow

import saturate

SCHEMAS = {"declared": interop_job.DECLARED}


def about():
    return {"version": saturate.__version__, "file": saturate.__file__, "names": sorted(saturate.__all__)}


def parameters(name):
    """The parameters of a public name in order, as (name, kind); none for a class that takes none of its own."""
    public = getattr(saturate, name)
    try:
        signature = inspect.signature(public)
    except ValueError:
        return []
    if isinstance(public, type) and issubclass(public, BaseException):
        return []
    return [(one.name, one.kind.name) for one in signature.parameters.values()]


def pump(rows, endpoint, output, window=4, parse="parse", schema=None, files=None, **options):
    """`schema` names one of `SCHEMAS`; `files` is the column whose text goes to a FileSink, instead of parquet."""
    if files is not None:
        output = saturate.FileSink(output, key=files)
    if schema is not None:
        schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in SCHEMAS[schema]])
    stats = saturate.pump(
        rows,
        interop_job.to_request,
        interop_job.PARSERS[parse],
        endpoint,
        output,
        window=saturate.Fixed(window),
        signal_source="none",
        schema=schema,
        **options,
    )
    return dict(dataclasses.asdict(stats), to_json=stats.to_json())


def existing_ids(output, retry_errors=False):
    return saturate.existing_ids(output, retry_errors=retry_errors)


def read_output(output):
    return list(saturate.read_output(output))


def content_ids(rows, keys=None):
    return [_id_or_refusal(saturate.content_id, row, keys) for row in rows]


def stream_ids(rows, **options):
    return [_id_or_refusal(lambda one: next(iter(saturate.stream([one], **options)))[0], row) for row in rows]


def _id_or_refusal(function, *arguments):
    try:
        return function(*arguments)
    except Exception as refusal:
        return type(refusal)


CALLS = {call.__name__: call for call in (about, parameters, pump, existing_ids, read_output, content_ids, stream_ids)}


def main():
    calls = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            name, arguments, keywords = pickle.load(calls)
        except EOFError:
            return
        try:
            answer = (True, CALLS[name](*arguments, **keywords))
        except Exception:
            answer = (False, traceback.format_exc())
        pickle.dump(answer, answers, protocol=4)
        answers.flush()


if __name__ == "__main__":
    main()
