"""Print where pip would look for packages, as options of uv, one a line.

uv reads none of pip's configuration (files or PIP_* variables). `pip config list` shows both, so
its output is read from standard input:

    python -m pip config list | python scripts/pip_sources.py

Runs on any Python and imports nothing that must be installed first.
"""

import ast
import sys

# pip's option -> uv's option. A source may be named in several places of the configuration
# (files, environment, a section for one command); uv gets all of them.
SOURCE_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
SECTIONS = {"global", "install", ":env:"}


def uv_options(config_list: str) -> list[str]:
    """Turn the text of `pip config list` into options for `uv pip install`.

    Lines look like `global.find-links='/a /b'` or `:env:.index-url='https://...'`. Values may hold
    several sources, separated by white space. Other settings and broken lines are left out.
    """
    options: list[str] = []
    for line in config_list.splitlines():
        key, _, quoted = line.partition("=")
        section, _, name = key.strip().rpartition(".")
        if section not in SECTIONS:
            continue
        try:
            value = str(ast.literal_eval(quoted.strip()))
        except (SyntaxError, ValueError):
            continue
        if name == "no-index" and value.lower() in {"1", "true", "yes", "on"}:
            found = ["--no-index"]
        elif name in SOURCE_OPTIONS:
            found = [f"{SOURCE_OPTIONS[name]}={source}" for source in value.split()]
        else:
            continue
        options += [option for option in found if option not in options]
    # pip takes the last index-url it reads; uv refuses a second one.
    default_indexes = [o for o in options if o.startswith("--default-index=")]
    return [o for o in options if o not in default_indexes[:-1]]


if __name__ == "__main__":
    for option in uv_options(sys.stdin.read()):
        print(option)
