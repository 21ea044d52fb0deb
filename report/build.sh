#!/usr/bin/env bash
# Makes report/report.pdf from report/*.typ and the files in results/. Options: those of lab3.report.
#   bash report/build.sh                   writes report/report.pdf
#   bash report/build.sh --pages /tmp/p    and a picture of each page
# It ends with one line and exit code 2 when a result is missing, a sentence of the report no longer
# agrees with the results, or no Chinese font is found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ "${LAB3_SKIP_SETUP:-0}" != 1 ]]; then bash setup.sh >&2; fi
if [[ -x .venv/bin/python ]]; then export PATH="$PWD/.venv/bin:$PATH"; fi
if ! python -c 'import typst' 2>/dev/null; then
    echo "error: report: this Python has no typst: run 'bash setup.sh'" >&2
    exit 2
fi
exec python -m lab3.report "$@"
