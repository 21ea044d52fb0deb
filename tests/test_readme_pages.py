"""The two READMEs say the same, and what they tell people to type works."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGLISH, CHINESE = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
)
# Words of other programs, which no file of this repository prints.
OF_OTHERS = {"torch==2.13.0+cpu", "PackageNotFoundError: vllm", "Server disconnected", "SJF"}


def shell_blocks(page: str) -> list[str]:
    return re.findall(r"```bash\n(.*?)```", page, re.DOTALL)


def lines_to_type(page: str) -> list[str]:
    """Every command of the shell blocks and of the table of commands, without comments, and with
    a block's variables put in."""
    lines = [line for block in shell_blocks(page) for line in commands_of(block)]
    table = page.split("\n## ")[2]
    return lines + re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


def commands_of(block: str) -> list[str]:
    """A shell block's commands, one a line whatever lines they were broken into."""
    whole: list[str] = []
    for line in re.sub(
        r"(^|\s)#.*$", "", block.replace("\\\n", " "), flags=re.MULTILINE
    ).splitlines():
        if whole and whole[-1].count('"') % 2:
            whole[-1] += f" {line.strip()}"
        elif line.strip():
            whole.append(line.strip())
    variables: dict[str, str] = {}
    found = []
    for line in whole:
        if assigned := re.fullmatch(r'([a-z]+)="(.*)"', line):
            variables[assigned[1]] = assigned[2]
        else:
            found.append(re.sub(r"\$([a-z]+)", lambda name: variables[name[1]], line))
    return found


LINES = lines_to_type(ENGLISH)


def outline(page: str) -> list[int]:
    without_code = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return [len(marks) for marks in re.findall(r"^(#+) ", without_code, re.MULTILINE)]


def first_column(page: str) -> list[list[str]]:
    """What stands in backticks in the first column of each table row."""
    rows = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    return [re.findall(r"`([^`]+)`", row) for row in rows]


def test_both_have_the_same_sections_commands_and_results():
    assert outline(ENGLISH) == outline(CHINESE)
    blocks = re.compile(r"```.*?```", re.DOTALL)
    assert blocks.findall(ENGLISH) == blocks.findall(CHINESE)
    results = re.compile(r"<!-- (?:from|summary of) .*?<!-- end -->", re.DOTALL)
    assert results.findall(ENGLISH)
    assert results.findall(ENGLISH) == results.findall(CHINESE)
    assert first_column(ENGLISH) == first_column(CHINESE)
    targets = re.compile(r"\]\(([^)]+)\)")
    assert set(targets.findall(ENGLISH)) - {"README.zh-CN.md"} == set(targets.findall(CHINESE)) - {
        "README.md"
    }


def environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """VARIABLE=value words in front of a command, and the command."""
    count = next(i for i, word in enumerate(words) if not re.match(r"[A-Z][A-Z0-9_]*=", word))
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def run(words: list[str], **values: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"LAB3_SKIP_SETUP": "1", "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, cwd=ROOT, env=os.environ | own | values, capture_output=True, text=True, timeout=240
    )


def known_options(words: list[str]) -> set[str]:
    """The options that a Python program lists in its help."""
    done = run([*words, "--help"])
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))


@pytest.mark.parametrize("line", dict.fromkeys(LINES))
def test_a_command_works(line):
    """Measuring scripts by DRY_RUN, Python programs by the options they know, others by existing;
    setup.sh, run_tests.sh, build.sh and pack.sh are run by tests of their own."""
    values, words = environment(shlex.split(line))
    if words[0] == "bash" and words[1] in ("task2.sh", "task3.sh", "dla.sh"):
        done = run(words, **{"PROFILE": "cpu"} | values | {"DRY_RUN": "1"})
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("vllm serve") >= 1
    elif words[0] == "bash":
        assert subprocess.run(["bash", "-n", str(ROOT / words[1])]).returncode == 0
    elif words[0] == "python":
        program = words[:3] if words[1] == "-m" else words[:2]
        options = {word for word in words[len(program) :] if word.startswith("--")}
        assert options <= known_options([sys.executable, *program[1:]]) | {"--help"}
    elif words[0] == "vllm":
        from lab3.commands import ServeCommand

        serve = ServeCommand.read(words)
        done = run(
            [sys.executable, "-m", "lab3.check", "--scheduler-cls", serve.scheduler_cls or ""]
        )
        assert done.returncode == 0, done.stderr
    else:
        assert words == ["source", ".venv/bin/activate"]


def test_messages_to_look_up_are_messages_of_this_repository():
    """Each message that Troubleshooting quotes: its fixed parts stand in one file."""
    table = ENGLISH.split("\n## Troubleshooting")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE)[1:]
    quoted = [text for row, _ in rows[1:] for text in re.findall(r"`([^`]+)`", row)]
    sources = [
        re.sub(r"[\"'] *\n *f?[\"']", "", path.read_text(encoding="utf-8"))
        for path in [*ROOT.glob("*.sh"), *ROOT.glob("lab3/**/*.py"), *ROOT.glob("scripts/*.sh")]
    ]
    for text in set(quoted) - OF_OTHERS:
        parts = [part for part in re.split(r"\d+|'[^']*'", text) if part.strip()]
        assert any(all(part in source for part in parts) for source in sources), text


def test_settings_that_troubleshooting_names_exist():
    table = ENGLISH.split("\n## Troubleshooting")[1].split("\n## ")[0]
    names = set(re.findall(r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b", table))
    known = "".join(
        path.read_text(encoding="utf-8")
        for path in [*ROOT.glob("*.sh"), *ROOT.glob("scripts/*.sh"), *ROOT.glob("profiles/*.env")]
    )
    assert {name for name in names if name not in known} == set()
