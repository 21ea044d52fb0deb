"""A share of the measured capacity as a request rate."""

import json

import pytest

from lab3.capacity import main, rate


@pytest.mark.parametrize(
    ("requests_per_s", "share", "expected"),
    [(10.37, 0.8, 8.3), (0.523, 0.9, 0.47), (123.4, 0.5, 62.0), (2.0, 1.0, 2.0)],
)
def test_rate_is_the_share_to_two_digits(requests_per_s, share, expected):
    assert rate(requests_per_s, share) == expected


def test_reads_the_bench_file(tmp_path, capsys):
    (tmp_path / "bench.json").write_text(json.dumps({"request_throughput": 12.5}))
    assert main([str(tmp_path), "0.8"]) == 0
    assert capsys.readouterr().out == "10\n"


@pytest.mark.parametrize(
    ("bench", "share", "says"),
    [
        ('{"request_throughput": 0.0}', "0.8", "no request of"),
        ("{}", "0.8", "request_throughput"),
        ("", "0.8", "cannot tell the capacity"),
        ('{"request_throughput": 3.0}', "nope", "nope"),
        ('{"request_throughput": 3.0}', "0", "above 0"),
        (None, "0.8", "bench.json"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(tmp_path, capsys, bench, share, says):
    if bench is not None:
        (tmp_path / "bench.json").write_text(bench)
    assert main([str(tmp_path), share]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
