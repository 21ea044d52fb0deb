"""A share of the measured capacity as a request rate."""

import json

import pytest

from lab3.capacity import main, rate, steady_rate


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


def bench(ends_s, errors=None):
    return {
        "request_throughput": 1.0,
        "start_times": [0.0] * len(ends_s),
        "ttfts": [0.5] * len(ends_s),
        "itls": [[end - 0.5] for end in ends_s],
        "errors": errors or [""] * len(ends_s),
    }


def test_the_steady_rate_leaves_out_filling_and_draining(tmp_path, capsys):
    # 15 slow ones, 70 at 10 a second, 15 slow ones.
    ends_s = [i + 1.0 for i in range(15)] + [15 + (i + 1) / 10 for i in range(70)]
    ends_s += [22 + i + 1.0 for i in range(15)]
    assert steady_rate(bench(ends_s)) == pytest.approx(10)
    failed = bench([*ends_s, 1e9], [""] * 100 + ["lost"])
    assert steady_rate(failed) == steady_rate(bench(ends_s))
    (tmp_path / "bench.json").write_text(json.dumps(bench(ends_s)))
    assert main([str(tmp_path), "0.5", "--steady"]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(5)


@pytest.mark.parametrize("ends_s", [[], [1.0], [1.0] * 10])
def test_too_few_answers_have_no_steady_rate(ends_s):
    with pytest.raises(ValueError, match="too few for a steady rate"):
        steady_rate(bench(ends_s))


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
