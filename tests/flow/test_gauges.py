"""What each engine's /metrics calls its numbers, as its own pages print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from saturate.flow.gauges import Gauges, parse

VECTORS = Path(__file__).parents[1] / "vectors"

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 37.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.8125
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+06
vllm:generation_tokens_total{engine="0",model_name="m"} 250000.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 12.0
"""

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 21.0
sglang:num_used_tokens{model_name="m"} 123859.0
sglang:token_usage{model_name="m"} 0.28
sglang:gen_throughput{model_name="m"} 86.5
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:cache_hit_rate{model_name="m"} 0.0075
sglang:prompt_tokens_total{model_name="m"} 8128902.0
sglang:generation_tokens_total{model_name="m"} 7557572.0
"""

TRTLLM = """\
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 6
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1
"""

TEI = """\
# TYPE te_queue_size gauge
te_queue_size 17
# TYPE te_batch_next_size histogram
te_batch_next_size_bucket{le="1"} 3
te_batch_next_size_bucket{le="+Inf"} 44
te_batch_next_size_sum 90
te_batch_next_size_count 44
# TYPE te_queue_size_seconds histogram
te_queue_size_sum 900
te_queue_size_bucket{le="1"} 3
"""


@pytest.mark.parametrize(
    ("page", "gauges"),
    [
        (VLLM, Gauges("vllm", 5, 37, 0.8125, None, 3, 1_250_000)),
        (VLLM.replace("vllm:", "vllm_"), Gauges("vllm", 5, 37, 0.8125, None, 3, 1_250_000)),
        (VLLM.replace(":kv_cache", ":gpu_cache"), Gauges("vllm", 5, 37, 0.8125, None, 3, 1_250_000)),
        ("vllm:gpu_prefix_cache_hit_rate 0.25\n", Gauges("vllm", hits=0.25)),
        (SGLANG, Gauges("sglang", 2, 21, 0.28, 0.0075, None, 15_686_474)),
        (SGLANG.replace("sglang:", "sglang_"), Gauges("sglang", 2, 21, 0.28, 0.0075, None, 15_686_474)),
        (TRTLLM, Gauges("trtllm", 1, 6)),
        (TEI, Gauges("tei", 17)),
        ("te:queue_size 4\n", Gauges("tei", 4)),
        ("llamacpp_requests_processing 2\nllamacpp_requests_deferred 9\n", Gauges("llamacpp", 9, 2)),
    ],
)
def test_each_engines_page_is_read(page, gauges):
    assert parse(page) == gauges


def test_a_page_recorded_from_a_real_llamacpp_server():
    page = (VECTORS / "llamacpp_metrics.txt").read_text()
    assert parse(page) == Gauges("llamacpp", waiting=8, running=4, engine_tokens=551 + 1794)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html><body>vllm:num_requests_waiting 3</body></html>",
        "# vllm:num_requests_waiting 3\n",
        " vllm:num_requests_waiting 3\n",
        "vllm:num_requests_waiting\n",
        "vllm:num_requests_waiting{} \n",
        "vllm:num_requests_waiting three\n",
        "vllm:num_requests_waiting -\n",
        "my_vllm:num_requests_waiting 3\n",
        "vllm:num_requests_waiting_total 3\n",
        "trtllm:num_requests_waiting 3\n",
        'te_batch_next_size_sum 3\nte_batch_next_size_bucket{le="1"} 3\nte_queue_size_sum 8\n',
        "process_cpu_seconds_total 12\n",
        '{"vllm:num_requests_waiting": 3}',
    ],
)
def test_a_page_that_names_nothing_known_is_no_reading(page):
    assert parse(page) is None


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf", "Inf", "1e999"])
def test_nan_and_infinity_are_no_reading_of_that_gauge(value):
    assert parse(f"vllm:num_requests_waiting {value}\n") is None
    page = f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_waiting 3\n"
    assert parse(page) == Gauges("vllm", waiting=3)


def test_a_replica_that_says_nan_does_not_hide_the_others():
    page = 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 4\n'
    assert parse(page) == Gauges("vllm", running=4)


@pytest.mark.parametrize(
    "labels",
    [
        '{model="a}b"}',
        '{model="a{b}c",x="}"}',
        '{model="say \\"hi\\" }"}',
        '{path="C:\\\\"}',
        "{}",
        '{model="日本",}',
        '{model="a b # c"}',
    ],
)
def test_a_label_may_hold_anything(labels):
    assert parse(f"vllm:num_requests_waiting{labels} 3\n") == Gauges("vllm", waiting=3)


def test_counts_of_several_label_sets_are_added_and_of_ratios_the_fullest_counts():
    page = "".join(
        f'vllm:{name}{{engine="{engine}"}} {value}\n'
        for engine, values in enumerate([(3, 10, 0.2, 1, 100, 10), (4, 20, 0.9, 2, 200, 20), (0, 5, 0.5, 0, 300, 30)])
        for name, value in zip(
            (
                "num_requests_waiting",
                "num_requests_running",
                "kv_cache_usage_perc",
                "num_preemptions_total",
                "prompt_tokens_total",
                "generation_tokens_total",
            ),
            values,
        )
    )
    assert parse(page) == Gauges("vllm", 7, 35, 0.9, None, 3, 660)


@pytest.mark.parametrize("line", ["vllm:num_requests_waiting 3 1700000000000", "vllm:num_requests_waiting\t3"])
def test_a_timestamp_and_a_tab_are_part_of_the_format(line):
    assert parse(line + "\n") == Gauges("vllm", waiting=3)


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_the_last_line_needs_no_end(end):
    assert parse(f"vllm:num_requests_running 1{end}vllm_x 3{end}" if end else "vllm:num_requests_running 1") == Gauges(
        "vllm", running=1
    )


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("3.0", 3), ("1e+03", 1000), (".5", 0.5), ("1.5E-1", 0.15)])
def test_a_value_is_any_decimal_number(text, value):
    assert parse(f"vllm:num_requests_waiting {text}\n").waiting == value


def test_of_two_engines_on_one_page_the_one_that_says_most_is_believed():
    assert parse("te_queue_size 3\n" + VLLM).dialect == "vllm"
    assert parse(VLLM + "te_queue_size 3\n").dialect == "vllm"


def test_a_gauge_that_is_zero_is_zero_and_one_that_is_missing_is_none():
    gauges = parse("vllm:num_requests_waiting 0.0\n").read_dict()
    assert gauges == {
        "waiting": 0.0, "running": None, "kv": None, "hits": None, "preempts": None, "engine_tokens": None,
    }  # fmt: skip


def test_a_page_of_a_megabyte_of_other_metrics_is_read():
    filler = "".join(f'http_bucket{{le="{i}",path="/a}}b"}} {i}\n' for i in range(20_000))
    assert parse(filler + VLLM) == parse(VLLM)


def test_an_unfinished_label_takes_no_time_and_is_no_reading():
    assert parse('vllm:num_requests_waiting{a="' + "\\" * 50_000 + "\n") is None
    assert parse("vllm:num_requests_waiting{" + 'a="b",' * 20_000 + "\n") is None
