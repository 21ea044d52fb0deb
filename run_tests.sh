#!/usr/bin/env bash
# Sets up and runs every check: ruff, shellcheck, pytest.
#   bash run_tests.sh                  everything, also what needs a live server
#   bash run_tests.sh -m "not live"    any options of pytest
#   TEST_WORKERS=0 bash run_tests.sh   one process instead of two, e.g. for --pdb
# Exit status: 0 only if every check passed; later checks run even when an earlier one failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [[ "${LAB3_SKIP_SETUP:-0}" != 1 ]]; then bash setup.sh; fi
if [[ -x .venv/bin/python ]]; then export PATH="$PWD/.venv/bin:$PATH"; fi
# The profile of a measurement has no say in what the tests check.
unset PROFILE DRY_RUN "${!TASK1_@}" "${!TASK2_@}"
export LAB3_SKIP_SETUP=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

failed=()
step() { # step NAME COMMAND...
    echo "== $1"
    "${@:2}" || failed+=("$1")
}

mapfile -t scripts < <(git ls-files '*.sh' .ci/run 2>/dev/null || find . -name '*.sh' -not -path './.venv/*')
step "ruff check" ruff check .
step "ruff format" ruff format --check .
step shellcheck shellcheck --severity=style --external-sources "${scripts[@]}"
# Two processes, a file in one of them: what a file sets up is set up once.
step pytest python -m pytest --numprocesses "${TEST_WORKERS:-2}" --dist loadfile "$@"

if ((${#failed[@]})); then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
echo "all checks passed"
