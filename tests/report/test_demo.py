"""The demo's parts: a text plot, real rows that every machine has, and arguments that cannot work."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from saturate.cli import main
from saturate.demo.docstrings import docstring_rows
from saturate.demo.plot import text_plot


def test_a_plot_is_a_step_line_with_both_axes_labelled():
    assert text_plot([(0, 16), (2, 32), (4, 64), (6, 64), (8, 32)], width=8, height=4) == "\n".join(
        [
            "  64 |   ####",
            "     |   ####",
            "  32 | #######",
            "     |########",
            "     +--------",
            "      0 s  8 s",
        ]
    )


@pytest.mark.parametrize("count", [1, 2, 59, 60, 61, 1000])
def test_a_plot_has_its_size_whatever_the_number_of_points(count):
    lines = text_plot([(2.0 * i, 16 + i % 50) for i in range(count)]).split("\n")
    assert len(lines) == 8 + 2
    assert max(map(len, lines)) <= 60 + 10
    assert all(line.startswith("  ") for line in lines)
    assert lines[-1].rstrip().endswith(f"{2 * (count - 1)} s")


def test_a_column_shows_the_value_in_force_at_its_time():
    bars = text_plot([(0, 8), (5, 4), (10, 8)], width=10, height=8).split("\n")[:8]
    heights = [sum(bar[5 + column : 6 + column] == "#" for bar in bars) for column in range(10)]
    assert heights == [8, 8, 8, 8, 4, 4, 4, 4, 4, 8]


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(3.0, 5.0)], [(1.0, 2.0), (1.0, 3.0)]])
def test_a_plot_of_next_to_nothing_is_still_a_plot(points):
    assert text_plot(points)


def test_docstring_rows_are_real_text_with_an_id_each():
    rows = list(docstring_rows(600))
    assert len(rows) == 600
    ids = [row_id for row_id, _ in rows]
    assert len(set(ids)) == 600
    for row_id, row in rows:
        assert set(row) == {"name", "text"} and row["name"] == row_id and ":" in row_id
        assert row["text"].strip()
    assert sum(len(row["text"]) for _, row in rows) > 60_000


def test_fewer_rows_are_the_first_of_the_same_rows_in_another_process_which_imports_none_of_them():
    source = (
        "import sys; from saturate.demo.docstrings import docstring_rows; before = set(sys.modules);"
        "rows = list(docstring_rows(200)); print(rows); print(sorted(set(sys.modules) - before))"
    )
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    rows, imported = said.splitlines()
    assert rows == repr(list(itertools.islice(docstring_rows(600), 200)))
    assert "antigravity" not in imported and "'this'" not in imported


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--endpoint", "http://h/v1"], "--endpoint and --model go together"),
        (["--model", "m"], "--endpoint and --model go together"),
        (["--rows", "0"], "--rows must be at least 1"),
        (["--rows", "-5"], "--rows must be at least 1"),
    ],
)
def test_arguments_that_cannot_work_are_a_sentence_and_status_2(arguments, message, capsys):
    assert main(["demo", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_output_that_holds_something_is_not_written_into(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("precious")
    assert main(["demo", "--output", str(tmp_path)]) == 2
    assert "is not empty; pass another --output" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
