#!/usr/bin/env bash
# Makes the hand-in, ID_NAME_lab3.zip, and runs the tests on what the archive unpacks to first.
#   bash pack.sh STUDENT_ID NAME
#   PACK_TESTS='-m "not live"' bash pack.sh ...   options of pytest (default: every test)
#   PACK_OUT=/folder bash pack.sh ...             where the archive goes (default: here)
# In it: the files that the lab asks for and what they need to run, that is, what git tracks, without
# the machinery of the repository. No archive is left when a file is missing or a test fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

die() {
    echo "error: pack: $*" >&2
    exit 2
}

[[ $# -eq 2 ]] || die "give student id and name: bash pack.sh STUDENT_ID NAME"
[[ $1 =~ ^[A-Za-z0-9]+$ ]] || die "'$1' is no student id: letters and digits only"
[[ $2 =~ ^[^[:space:]/_.]+$ ]] || die "'$2' is no name for a file: no spaces, slashes, dots, underscores"
readonly asked=(task1_vllm_vs_hf.py task2.sh my_scheduler.py task3.sh requirements.txt README.md
    report/report.pdf)
for file in "${asked[@]}"; do
    [[ -s $file ]] || die "$file is missing; the lab asks for it"
done

if [[ "${LAB3_SKIP_SETUP:-0}" != 1 ]]; then bash setup.sh >&2; fi
if [[ -x .venv/bin/python ]]; then export PATH="$PWD/.venv/bin:$PATH"; fi
folder="$1_$2_lab3"
archive="$(realpath -m "${PACK_OUT:-.}")/$folder.zip"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
readonly folder archive work

list_files() { # paths of what goes in, NUL after each
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z
    else # an unpacked hand-in, packed again
        find . \( -name .venv -o -name models -o -name runs -o -name build -o -name __pycache__ \
            -o -name '*.egg-info' -o -name '.*_cache' -o -name .hypothesis \) -prune \
            -o -type f ! -name '*_lab3.zip' -printf '%P\0'
    fi | grep -zvE '^(\.ci/|\.git)'
}

mkdir "$work/$folder"
list_files | xargs -0 cp --parents -t "$work/$folder"
(cd "$work" && python -m zipfile -c hand-in.zip "$folder")
mkdir "$work/unpacked"
python -m zipfile -e "$work/hand-in.zip" "$work/unpacked"

options=()
if [[ -n "${PACK_TESTS:-}" ]]; then eval "options=($PACK_TESTS)"; fi
echo "pack: running the tests on the unpacked copy" >&2
(cd "$work/unpacked/$folder" && LAB3_SKIP_SETUP=1 bash run_tests.sh "${options[@]}") >&2 ||
    die "a test fails on the unpacked copy: no archive made"
mkdir -p "$(dirname "$archive")"
mv "$work/hand-in.zip" "$archive"
echo "$archive"
