#!/usr/bin/env bash
# Makes locks/cpu.txt and locks/gpu.txt from requirements-cpu.txt and requirements.txt, and proves
# that every pin has a wheel for Python 3.11 and 3.12 on x86-64 Linux. No GPU is needed.
#   bash scripts/lock.sh            keep the pins that still fit
#   bash scripts/lock.sh --upgrade  take the newest versions
# Needs uv (setup.sh leaves one in .venv). LAB3_TORCH_INDEX names another source of the CPU torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH" UV_CUSTOM_COMPILE_COMMAND="bash scripts/lock.sh"
command -v uv >/dev/null || { echo "uv is missing: run 'bash setup.sh' or 'pip install uv'" >&2; exit 2; }

mapfile -t sources < <(python3 -m pip config list | python3 scripts/pip_sources.py)
sources+=(--index-strategy unsafe-best-match)
torch_index="${LAB3_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"

compile() { # compile REQUIREMENTS LOCK [uv option...]
    local requirements="$1" lock="$2" made
    shift 2
    made="$(mktemp)"
    cp "$lock" "$made" 2>/dev/null || true
    # One version for both Pythons wherever one exists (fewest), with markers where none does.
    uv pip compile --quiet "$requirements" --universal --python-version 3.11 --no-annotate \
        --fork-strategy fewest --output-file "$made" "${sources[@]}" "$@"
    {
        echo "# Made by: bash scripts/lock.sh, which runs"
        echo "#   uv pip compile $requirements --universal --python-version 3.11 --no-annotate \\"
        echo "#       --fork-strategy fewest --output-file $lock --index-strategy unsafe-best-match $*"
        grep -v '^#' "$made"
    } >"$lock.new"
    rm "$made"
    mv "$lock.new" "$lock"
}

verify() { # verify LOCK [uv option...]: every pin has a wheel (glibc 2.31 or newer)
    local lock="$1" version failed=0
    shift
    for version in 3.11 3.12; do
        if uv pip install --quiet --dry-run --no-deps --only-binary :all: --target "$(mktemp -d)" \
            --python-version "$version" --python-platform x86_64-manylinux_2_31 \
            -r "$lock" "${sources[@]}" "$@"; then
            echo "$lock: every pin has a wheel for Python $version"
        else
            echo "$lock: no complete set of wheels for Python $version in these sources" >&2
            failed=1
        fi
    done
    return "$failed"
}

# The CPU build of torch: pip's own sources first, then PyTorch's index beside them.
exclude=(--excludes packaging/cpu-excludes.txt)
compile requirements-cpu.txt locks/cpu.txt "${exclude[@]}" "$@" 2>/dev/null ||
    compile requirements-cpu.txt locks/cpu.txt "${exclude[@]}" --index "$torch_index" "$@"
# `==2.13.0` also accepts 2.13.0+cpu, and prefers it where a source has it: rule it out, here and
# when the lock is installed.
no_cpu_torch="$(mktemp)"
echo 'torch!=2.13.0+cpu' >"$no_cpu_torch"
UV_CONSTRAINT="$no_cpu_torch" compile requirements.txt locks/gpu.txt "$@"
rm "$no_cpu_torch"
sed -i 's/^torch==2\.13\.0$/torch==2.13.0,!=2.13.0+cpu/' locks/gpu.txt

status=0
verify locks/cpu.txt || verify locks/cpu.txt --index "$torch_index" || status=1
verify locks/gpu.txt || status=1
exit "$status"
