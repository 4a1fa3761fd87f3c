"""The public asyncio project and ours keep one storage contract: either one resumes what the other left.

Every case runs both ways round. A recording server counts what was paid for; the public project's reader and ours
must say the same about every output.
"""

import datetime
import itertools
import json
import math
import random
import subprocess
import sys
import time

import interop_job
import pyarrow.parquet
import pytest

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BOTH_WAYS = pytest.mark.parametrize("order", [("public", "ours"), ("ours", "public")], ids=" then ".join)


@pytest.fixture
def programs(public, ours):
    return {"public": public, "ours": ours}


def rows_of(count):
    return [{"k": f"k{index:03}", "text": f"row number {index}"} for index in range(count)]


def prompts(rows):
    return sorted(row["text"] for row in rows)


def expected_columns(row, parse=interop_job.parse):
    """The columns a successful row must read back with, those that are never typed left out."""
    response = {"choices": [{"message": {"content": interop_job.answer_to(row["text"])}}]}
    return without_nulls(parse(row, response))


def without_nulls(columns):
    return {name: value for name, value in columns.items() if value is not None}


def readings(programs, output):
    """What both programs read from `output`, after making sure that they agree: [(id, row)]."""
    by_public = programs["public"].read_output(output)
    by_ours = programs["ours"].read_output(output)
    assert by_ours == by_public
    for retry_errors in (False, True):
        public_ids = programs["public"].existing_ids(output, retry_errors)
        our_ids = programs["ours"].existing_ids(output, retry_errors)
        assert set(our_ids) == set(public_ids)
    return by_ours


def assert_landed(programs, output, rows, parse=interop_job.parse, key="k"):
    """Every row of `rows`, and no other, reads back with its own answer."""
    got = readings(programs, output)
    assert len(got) == len(rows)
    assert {row_id: without_nulls(row) for row_id, row in got} == {
        str(row[key]): expected_columns(row, parse) for row in rows
    }


def shape(kind):
    """An Arrow type as text, without the order of an object's fields: that depends on the version of Arrow."""
    if pyarrow.types.is_struct(kind):
        return {kind.field(index).name: shape(kind.field(index).type) for index in range(kind.num_fields)}
    if pyarrow.types.is_list(kind):
        return [shape(kind.value_type)]
    return str(kind)


def parts(output):
    return sorted(output.glob("part-*.parquet"))


# -- resuming ---------------------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_either_program_resumes_a_half_done_output_of_the_other_without_paying_twice(order, programs, server, tmp_path):
    first, second = order
    rows = rows_of(40)
    out = tmp_path / "out"
    programs[first].pump(rows[:23], server.endpoint, out, id_key="k")
    stats = programs[second].pump(rows, server.endpoint, out, id_key="k")
    assert sorted(server.paid.elements()) == prompts(rows)
    assert (stats["rows_done_prior"], stats["rows_processed"], stats["rows_failed"]) == (23, 17, 0)
    assert_landed(programs, out, rows)


@BOTH_WAYS
def test_either_program_finds_nothing_to_do_in_a_finished_output_of_the_other(order, programs, server, tmp_path):
    first, second = order
    rows = rows_of(25)
    out = tmp_path / "out"
    programs[first].pump(rows, server.endpoint, out)
    server.forget()
    stats = programs[second].pump(rows, server.endpoint, out)
    assert server.requests == 0
    assert (stats["rows_total"], stats["rows_done_prior"]) == (25, 25)


@BOTH_WAYS
def test_what_was_durable_when_one_program_was_killed_is_not_paid_again_by_the_other(
    order, programs, mortal, server, tmp_path
):
    first, second = order
    rows = rows_of(600)
    out = tmp_path / "out"
    server.delay_s = 0.02
    victim = mortal(first)
    victim.start("pump", rows, server.endpoint, str(out), window=4, flush_every=5, id_key="k")
    deadline = time.monotonic() + 60
    while len(parts(out)) < 4:
        assert time.monotonic() < deadline, f"no parts from {first}"
        time.sleep(0.005)
    victim.kill()
    server.delay_s = 0.0
    durable = programs[second].existing_ids(out)
    paid_before = server.forget()
    assert 15 <= len(durable) < len(rows)

    programs[second].pump(rows, server.endpoint, out, id_key="k")
    paid_after = server.forget()
    assert max(paid_before.values()) == max(paid_after.values()) == 1
    assert not {row["text"] for row in rows if row["k"] in durable} & set(paid_after)
    assert_landed(programs, out, rows)

    # Whatever the killed program had noted down for itself adds nothing and takes nothing away when it is run again.
    programs[first].pump(rows, server.endpoint, out, id_key="k")
    assert server.requests == 0
    assert_landed(programs, out, rows)


def test_six_runs_that_alternate_between_the_programs_pay_every_row_once(programs, server, tmp_path):
    out = tmp_path / "out"
    rows = rows_of(72)
    # Each run sees more rows than the one before, and some of them bring a column of their own.
    for row, column in ((rows[15], "later"), (rows[40], "latest"), (rows[66], "later")):
        row["say"] = column
    for run, program in enumerate(itertools.islice(itertools.cycle(["public", "ours"]), 6), start=1):
        stats = programs[program].pump(rows[: 12 * run], server.endpoint, out, id_key="k", flush_every=5)
        assert (stats["rows_done_prior"], stats["rows_processed"]) == (12 * (run - 1), 12), program
    assert sorted(server.paid.elements()) == prompts(rows)
    assert_landed(programs, out, rows)


def test_a_column_keeps_the_type_that_the_other_program_gave_it(programs, server, tmp_path):
    for first, second in (("public", "ours"), ("ours", "public")):
        out = tmp_path / first
        rows = rows_of(8)
        misfit = {"k": "misfit", "text": "the misfit", "say": "float"}  # 0.5 where whole numbers were
        programs[first].pump(rows[:4], server.endpoint, out, id_key="k")
        stats = programs[second].pump(rows + [misfit], server.endpoint, out, id_key="k")
        assert (stats["rows_processed"], stats["rows_failed"]) == (4, 1)
        assert_landed(programs, out, rows)
        types = [
            {field.name: field.type for field in pyarrow.parquet.read_schema(str(part)) if field.name != "error"}
            for part in parts(out)
        ]
        assert all(columns == types[0] for columns in types)


def test_both_programs_give_the_same_answers_the_same_columns_types_and_records(programs, server, tmp_path):
    rows = rows_of(9) + [{"k": "bad", "text": "bad", "say": "raise"}, {"k": "late", "text": "late", "say": "later"}]
    schemas, records = {}, {}
    for name, program in programs.items():
        out = tmp_path / name
        program.pump(rows, server.endpoint, out, id_key="k", window=1, flush_every=100)
        (part,) = parts(out)
        (sidecar,) = (out / "_manifest").iterdir()
        assert sidecar.name == "ids-" + part.name
        table = pyarrow.parquet.read_table(str(part))
        schemas[name] = {field.name: (shape(field.type), field.nullable) for field in table.schema}
        records[name] = {record.pop("id"): record for record in table.to_pylist()}
        index = pyarrow.parquet.read_table(str(sidecar))
        assert index.column_names == ["id", "error"]
        assert index.to_pylist() == table.select(["id", "error"]).to_pylist()
    assert schemas["ours"] == schemas["public"]
    assert records["ours"] == records["public"]


def test_the_markers_and_the_statistics_of_both_programs_have_the_same_names(programs, server, tmp_path):
    written, keys = {}, {}
    for name, program in programs.items():
        out = tmp_path / name
        program.pump(rows_of(6), server.endpoint, out, shard=(1, 3))
        written[name] = sorted(path.relative_to(out).as_posix() for path in (out / "completions").iterdir())
        assert (out / "completions" / "shard-1.done").read_bytes() == b"done"
        stats = json.loads((out / "completions" / "stats-1.json").read_text(encoding="utf-8"))
        assert (stats["rank"], stats["world"], stats["rows_processed"]) == (1, 3, 6)
        keys[name] = set(stats)
    assert written["ours"] == written["public"]
    assert keys["ours"] >= keys["public"]


def test_statistics_turn_into_the_same_json_text_in_both_programs(programs, server, tmp_path):
    texts = {
        name: program.pump(rows_of(3), server.endpoint, tmp_path / name)["to_json"]
        for name, program in programs.items()
    }
    assert {type(text) for text in texts.values()} == {str}
    mine, theirs = json.loads(texts["ours"]), json.loads(texts["public"])
    assert list(mine)[: len(theirs)] == list(theirs)
    measured = ("elapsed_s", "tokens_per_sec")
    assert {key: mine[key] for key in theirs if key not in measured} == {
        key: value for key, value in theirs.items() if key not in measured
    }


def test_shards_written_by_different_programs_make_one_output(programs, server, tmp_path):
    out = tmp_path / "out"
    rows = rows_of(30)
    for rank, program in enumerate(("public", "ours", "public")):
        programs[program].pump(rows[rank::3], server.endpoint, out, shard=(rank, 3), id_key="k")
    assert sorted(server.paid.elements()) == prompts(rows)
    assert_landed(programs, out, rows)
    server.forget()
    for program in programs.values():
        program.pump(rows, server.endpoint, out, id_key="k")
    assert server.requests == 0


def test_shards_written_by_both_programs_at_the_same_time_make_one_output(programs, server, tmp_path):
    out = tmp_path / "out"
    rows = rows_of(80)
    server.delay_s = 0.01
    shards = list(zip((0, 1), (programs["public"], programs["ours"])))
    for rank, program in shards:
        program.start("pump", rows[rank::2], server.endpoint, str(out), shard=(rank, 2), id_key="k", flush_every=3)
    for _, program in shards:
        assert program.answer()["rows_processed"] == 40
    assert sorted(server.paid.elements()) == prompts(rows)
    assert_landed(programs, out, rows)


@BOTH_WAYS
def test_a_directory_of_files_is_resumed_by_the_other_program(order, programs, server, tmp_path):
    first, second = order
    out = tmp_path / "files"
    rows = [(name, {"text": f"file {name}"}) for name in ("a", "b c", "x.txt", "日本", "d:e*", "bad", "last")]
    server.refused = {"file bad": 400}
    programs[first].pump(rows[:6], server.endpoint, out, files="answer")
    paid = server.forget()
    assert set(paid.values()) == {1}
    server.refused = {}
    programs[second].pump(rows, server.endpoint, out, files="answer")
    # An error leaves no file, so the row is asked again.
    assert sorted(server.paid.elements()) == ["file bad", "file last"]
    assert {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()} == {
        name + ".txt": interop_job.answer_to(row["text"]) for name, row in rows
    }


@pytest.mark.parametrize("name", ["with space", "a[0-9]*?b", "číslo 日本"])
def test_an_output_of_ours_at_an_awkward_path_can_be_copied_to_the_public_project(name, programs, server, tmp_path):
    # The public reader finds nothing below a path with glob characters, so it is given the same files elsewhere.
    rows = rows_of(12)
    awkward, plain = tmp_path / name / "out", tmp_path / "copy"
    programs["ours"].pump(rows[:7], server.endpoint, awkward, id_key="k")
    programs["ours"].pump(rows, server.endpoint, awkward, id_key="k")
    assert sorted(server.paid.elements()) == prompts(rows)
    awkward.rename(plain)
    assert_landed(programs, plain, rows)


# -- errors and healing -----------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_error_rows_of_one_program_are_done_for_the_other_until_retry_errors_heals_them(
    order, programs, server, tmp_path
):
    first, second = order
    out = tmp_path / "out"
    rows = rows_of(20)
    rows[3]["say"], rows[9]["say"] = "raise", "list"
    server.refused = {rows[1]["text"]: 400, rows[5]["text"]: 422, rows[17]["text"]: 404}
    failing = {1, 3, 5, 9, 17}
    good = [row for index, row in enumerate(rows) if index not in failing]

    stats = programs[first].pump(rows, server.endpoint, out, id_key="k")
    assert (stats["rows_processed"], stats["rows_failed"]) == (15, 5)
    assert_landed(programs, out, good)

    server.forget()
    programs[second].pump(rows, server.endpoint, out, id_key="k")
    assert server.requests == 0, "without retry_errors an error row is done"

    server.refused = {rows[5]["text"]: 422}
    stats = programs[second].pump(rows, server.endpoint, out, id_key="k", retry_errors=True)
    assert sorted(server.forget().elements()) == prompts([rows[index] for index in failing])
    assert (stats["rows_processed"], stats["rows_failed"]) == (2, 3)  # 3 and 9 fail in parse again, 5 is still refused
    assert_landed(programs, out, good + [rows[1], rows[17]])

    server.refused = {}
    for row in (rows[3], rows[9]):
        del row["say"]
    programs[first].pump(rows, server.endpoint, out, id_key="k", retry_errors=True)
    assert sorted(server.forget().elements()) == prompts([rows[3], rows[5], rows[9]])
    assert_landed(programs, out, rows)

    for program in programs.values():
        program.pump(rows, server.endpoint, out, id_key="k", retry_errors=True)
    assert server.requests == 0


def test_error_rows_say_the_same_in_both_programs(programs, server, tmp_path):
    rows = rows_of(5)
    rows[1]["say"], rows[2]["say"] = "raise", "list"
    server.refused = {rows[3]["text"]: 400}
    errors = {}
    for name, program in programs.items():
        out = tmp_path / name
        program.pump(rows, server.endpoint, out, id_key="k")
        table = pyarrow.concat_tables(
            [pyarrow.parquet.read_table(str(part), columns=["id", "error"]) for part in parts(out)]
        )
        errors[name] = {record["id"]: record["error"] for record in table.to_pylist()}
    assert errors["ours"] == errors["public"]


# -- compacting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["public", "ours"])
def test_a_compacted_output_of_either_program_is_read_and_gone_on_with_by_both(program, programs, server, tmp_path):
    out, new = tmp_path / "out", tmp_path / "new"
    rows = rows_of(50)
    server.refused = {row["text"]: 400 for row in rows[10:14]}
    programs[program].pump(rows[:20], server.endpoint, out, id_key="k", flush_every=3)
    server.refused = {row["text"]: 400 for row in rows[12:14]}
    programs[program].pump(rows[:40], server.endpoint, out, id_key="k", flush_every=3, retry_errors=True)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    ran = subprocess.run(
        [sys.executable, "-m", "saturate.cli", "compact", str(out), str(new)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert len(parts(new)) == 1 < len(parts(out))
    assert sorted(readings(programs, new), key=str) == sorted(readings(programs, out), key=str)
    for other in ("public", "ours"):
        server.forget()
        stats = programs[other].pump(rows[:40], server.endpoint, new, id_key="k")
        assert (stats["rows_done_prior"], server.requests) == (40, 0)
    stats = programs["public"].pump(rows, server.endpoint, new, id_key="k")
    assert (stats["rows_done_prior"], stats["rows_processed"]) == (40, 10)
    readings(programs, new)


# -- declared schema --------------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_a_declared_schema_is_kept_by_both_programs(order, programs, server, tmp_path):
    first, second = order
    out = tmp_path / "out"
    rows = rows_of(12)
    rows[2]["say"], rows[8]["say"] = "big", "extra"  # 2**40 in an int32 column; a column outside the schema
    good = [row for row in rows if "say" not in row]
    declared = {"schema": "declared", "parse": "parse_declared", "id_key": "k"}
    stats = programs[first].pump(rows[:6], server.endpoint, out, **declared)
    assert (stats["rows_processed"], stats["rows_failed"]) == (5, 1)
    stats = programs[second].pump(rows, server.endpoint, out, **declared)
    assert (stats["rows_done_prior"], stats["rows_processed"], stats["rows_failed"]) == (6, 5, 1)
    assert sorted(server.paid.elements()) == prompts(rows)
    assert_landed(programs, out, good, interop_job.parse_declared)
    for part in parts(out):
        schema = pyarrow.parquet.read_schema(str(part))
        assert [(field.name, field.type) for field in schema] == [
            (name, pyarrow.type_for_alias(kind)) for name, kind in interop_job.DECLARED
        ]


# -- ids --------------------------------------------------------------------------------------------------------------

ODD_IDS = ["", " ", "None", "0", "a/b", "..", "é", "日本", "😀", "x\u2028y", "tab\tnew\nline", "ids-part-1", "x" * 500]


@BOTH_WAYS
def test_rows_with_ids_of_their_own_are_resumed_by_the_other_program(order, programs, server, tmp_path):
    first, second = order
    out = tmp_path / "out"
    rows = [(row_id, {"text": f"asked by {row_id!r}"}) for row_id in ODD_IDS + [7, 7.5, True, None]]
    # The last one's id is the text "None", which the first run has stored.
    programs[first].pump(rows[:9], server.endpoint, out)
    stats = programs[second].pump(rows, server.endpoint, out)
    assert set(server.paid.values()) == {1}
    assert len(server.paid) == len(rows) - 1
    assert (stats["rows_done_prior"], stats["rows_processed"]) == (10, len(rows) - 10)
    assert sorted(row_id for row_id, _ in readings(programs, out)) == sorted({str(row_id) for row_id, _ in rows})


@BOTH_WAYS
def test_default_content_ids_let_the_other_program_resume_rows_of_any_shape(order, programs, server, tmp_path):
    first, second = order
    out = tmp_path / "out"
    rows = [dict(row, text=f"row {index}") for index, row in enumerate(generated_rows(90))]
    rows = [row for row in rows if has_content_id(row)]
    assert len(rows) > 30
    programs[first].pump(rows[::2], server.endpoint, out)
    stats = programs[second].pump(rows, server.endpoint, out)
    assert stats["rows_done_prior"] == len(rows[::2])
    assert sorted(server.paid.elements()) == prompts(rows)
    readings(programs, out)


def test_content_ids_of_hundreds_of_generated_rows_are_those_of_the_public_project(programs):
    rows = generated_rows(600)
    public_ids = programs["public"].call("content_ids", rows)
    our_ids = programs["ours"].call("content_ids", rows)
    different = [(row, p, o) for row, p, o in zip(rows, public_ids, our_ids) if p != o]
    assert not different
    assert sum(isinstance(one, str) for one in public_ids) > 300
    assert sum(isinstance(one, type) for one in public_ids) > 30


def test_content_ids_of_chosen_keys_are_those_of_the_public_project(programs):
    rows = [dict(row, a=index, b="β") for index, row in enumerate(generated_rows(100))]
    for keys in (["a"], ["b", "a"], [], ("a", "a"), "ab", ["missing"]):
        assert programs["ours"].call("content_ids", rows, keys) == programs["public"].call("content_ids", rows, keys)


def test_stream_gives_the_ids_and_refuses_the_rows_that_the_public_project_does(programs):
    rows = generated_rows(60) + [
        (1, {"a": 1}),
        ("x", {"a": 1}, 3),
        ["x", {"a": 1}],
        ("x", "not a dict"),
        "text",
        None,
        {"k": b"x"},
        {"k": None},
        {"k": 1e16},
        {"k": ("t", 1)},
    ]
    for options in ({}, {"id_key": "k"}, {"id_keys": ["k"]}, {"id_keys": ["k"], "id_key": "k"}):
        expected = programs["public"].call("stream_ids", rows, **options)
        assert programs["ours"].call("stream_ids", rows, **options) == expected


def has_content_id(row):
    """Whether the row has a content id and can travel in a request: what JSON and UTF-8 can hold."""
    try:
        json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError):
        return False
    return True


def generated_rows(count):
    """Rows of odd values from a fixed seed: any plane of Unicode, lone surrogates, floats from raw bits, huge ints,
    nesting, mixed keys, and values that JSON refuses."""
    random_ = random.Random(20)
    return [_odd_object(random_, 3) for _ in range(count)]


ODD_CHARACTERS = '\x00\x1f\x7f\x85"\\/<>&\u2028\u2029\ufeff\uffff\U0001f600\U00010000é\u0301aZ09 \n\r\t\b\f'
ODD_NUMBERS = (0, -1, 2**53 + 1, 2**63, -(2**64), 10**30, 0.0, -0.0, 1e16, 1e15, 1e-7, 5e-324, 0.1 + 0.2, 1e22)
REFUSED = (b"bytes", {1, 2}, datetime.date(2020, 1, 1), 1j, object)


def _odd_text(random_):
    kinds = (ODD_CHARACTERS, "abc", "žluťoučký", "日本語", "\ud800" if random_.random() < 0.02 else "x")
    return "".join(random_.choice(random_.choice(kinds)) for _ in range(random_.randrange(8)))


def _odd_number(random_):
    choice = random_.random()
    if choice < 0.3:
        return random_.choice(ODD_NUMBERS)
    if choice < 0.6:
        return math.ldexp(random_.random() - 0.5, random_.randrange(-1070, 1020))
    if choice < 0.7:
        return random_.choice((math.nan, math.inf, -math.inf, True, False))
    return random_.getrandbits(random_.randrange(1, 90)) * random_.choice((1, -1))


def _odd_key(random_):
    choice = random_.random()
    if choice < 0.93:
        return random_.choice(("k", "K", "\uffff", "\U00010000", "é", "")) + _odd_text(random_)
    if choice < 0.97:
        return random_.randrange(20)
    return random_.choice((None, True, 1.5, ("a", 1)))


def _odd_object(random_, depth):
    if random_.random() < 0.06:  # keys of one kind other than text sort among themselves
        return {random_.randrange(30): _odd_value(random_, depth - 1) for _ in range(5)}
    return {_odd_key(random_): _odd_value(random_, depth - 1) for _ in range(random_.randrange(5))}


def _odd_value(random_, depth):
    choice = random_.random()
    if depth > 0 and choice < 0.25:
        return _odd_object(random_, depth)
    if depth > 0 and choice < 0.45:
        kind = random_.choice((list, tuple))
        return kind(_odd_value(random_, depth - 1) for _ in range(random_.randrange(4)))
    if choice < 0.72:
        return _odd_text(random_)
    if choice < 0.95:
        return _odd_number(random_)
    if choice < 0.98:
        return None
    return random_.choice(REFUSED)


# -- names ------------------------------------------------------------------------------------------------------------

SHARED_NAMES = (
    "pump Stats Done stream skip_done shard_select prepare_ahead content_id through drain read_output existing_ids "
    "AdaptiveClient AdaptiveLimiter Auto Fixed Obs ParquetSink FileSink Request make_json_request "
    "make_multipart_request FatalTransportError"
).split()


def test_the_names_of_the_public_project_are_names_of_ours(programs):
    about = {name: program.call("about") for name, program in programs.items()}
    assert about["public"]["version"] == "0.2.0"
    assert about["public"]["file"] != about["ours"]["file"]
    assert set(SHARED_NAMES) <= set(about["public"]["names"])
    assert set(SHARED_NAMES) <= set(about["ours"]["names"])


@pytest.mark.parametrize("name", SHARED_NAMES)
def test_a_call_written_for_the_public_project_means_the_same_to_ours(name, programs):
    theirs = programs["public"].call("parameters", name)
    mine = programs["ours"].call("parameters", name)
    # Ours may have more, after theirs or by keyword only.
    assert mine[: len(theirs)] == theirs
