#!/usr/bin/env bash
# Makes .venv with everything the lab needs and checks it; a second call returns at once.
#   bash setup.sh          set up if anything is missing or has changed
#   bash setup.sh --check  only the check: versions, device, model, scheduler classes
# LAB3_DEVICE=cpu|gpu    decides about the set instead of asking nvidia-smi
# LAB3_PYTHON=/path      the Python to use (3.11 or 3.12) instead of looking for one
# LAB3_TORCH_INDEX=URL   where the CPU build of torch is if pip's own sources lack it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly UV_VERSION=0.13.9
readonly STAMP=.venv/.lab3-complete UNFINISHED=.venv/.lab3-unfinished
readonly TORCH_INDEX="${LAB3_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
device="$(bash scripts/device.sh)"
readonly device lock="locks/$device.txt"

say() { echo "setup: $*"; }

die() {
    echo "setup: $*" >&2
    exit 1
}

usable_python() { # a CPython 3.11 or 3.12 that can make a virtual environment
    "$1" - 2>/dev/null <<'PYTHON'
import ensurepip, sys, venv
sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)} or sys.implementation.name != "cpython")
PYTHON
}

find_pythons() {
    local name
    for name in ${LAB3_PYTHON:-python3 python3.12 python3.11}; do
        if usable_python "$name"; then echo "$name"; fi
    done
}

state() { # what .venv was made from; the folder is in it because a moved .venv does not work
    echo "$device $PWD"
    sha256sum setup.sh pyproject.toml "$lock" packaging/vllm-cpu-shim/pyproject.toml
}

complete() {
    [[ -f $STAMP ]] && [[ "$(<"$STAMP")" == "$(state)" ]] && .venv/bin/python -c '' 2>/dev/null
}

other_device() { [[ -f $STAMP && "$(head -n 1 "$STAMP")" != "$device $PWD" ]]; }

make_venv() { # make_venv PYTHON
    # An interrupted install can leave half a package that looks whole; both vLLM wheels write the
    # same files. Either way the packages come back out of the installer's cache.
    if [[ -f $UNFINISHED ]] || other_device; then rm -rf .venv; fi
    if [[ -e .venv ]] && ! usable_python .venv/bin/python; then
        [[ -f $STAMP ]] || die ".venv is not a Python 3.11 or 3.12 environment: move it away first"
        rm -rf .venv
    fi
    [[ -e .venv ]] || "$1" -m venv .venv
    touch "$UNFINISHED"
    rm -f "$STAMP"
}

read_sources() { # uv reads none of pip's settings: give it pip's sources, certificate and time-out
    local settings cert timeout
    settings="$(.venv/bin/python -m pip config list)"
    mapfile -t sources < <(.venv/bin/python scripts/pip_sources.py <<<"$settings")
    cert="$(sed -n "s/^[^=]*\.cert='\(.*\)'$/\1/p" <<<"$settings" | tail -n 1)"
    timeout="$(sed -n "s/^[^=]*timeout='\([0-9]*\)'$/\1/p" <<<"$settings" | tail -n 1)"
    if [[ -n $cert ]]; then export SSL_CERT_FILE="${SSL_CERT_FILE:-$cert}"; fi
    export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-${timeout:-180}}"
}

choose_installer() { # sets install=(...): uv, or pip where uv cannot be had
    if .venv/bin/python -m pip install -qq --disable-pip-version-check "uv==$UV_VERSION"; then
        # A pinned version may lie in any of the sources, not only in the first that has the name.
        install=(.venv/bin/uv pip install --python .venv/bin/python --quiet "${sources[@]}"
            --index-strategy unsafe-best-match)
        extra_index=(--index "$TORCH_INDEX")
    else
        say "uv is not to be had here; pip does the same in minutes instead of seconds"
        install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
        extra_index=(--extra-index-url "$TORCH_INDEX")
    fi
}

install_lock() {
    local log=.venv/install.log
    if "${install[@]}" --no-deps -r "$lock" 2>"$log"; then return; fi
    # Only the CPU build of torch lies outside PyPI.
    if [[ $device == cpu ]] && grep -q torch "$log"; then
        say "pip's own sources lack the CPU build of torch: trying again with $TORCH_INDEX"
        if "${install[@]}" "${extra_index[@]}" --no-deps -r "$lock" 2>>"$log"; then return; fi
    fi
    tail -n 20 "$log" >&2
    return 1
}

install_repository() {
    local local_packages=(-e .)
    if [[ $device == cpu ]]; then local_packages+=(./packaging/vllm-cpu-shim); fi
    "${install[@]}" --no-deps --no-build-isolation "${local_packages[@]}"
}

compile_bytecode() { # uv writes no .pyc, and the first import of each process would pay for it
    local site
    site="$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    # The big ones, without the hundreds of model types that nothing here imports. A package may
    # ship templates that are no Python: not an error.
    .venv/bin/python -m compileall -q -j 0 -x '/transformers/models/(?!auto|qwen3/)' \
        "$site/vllm" "$site/torch" "$site/sympy" "$site/transformers" >/dev/null 2>&1 || true
}

set_up() {
    local pythons python install=() extra_index=() sources=()
    mapfile -t pythons < <(find_pythons)
    [[ ${#pythons[@]} -gt 0 ]] ||
        die "needs Python 3.11 or 3.12 with venv (Debian, Ubuntu: apt install python3-venv); set LAB3_PYTHON if it is not in PATH"
    for python in "${pythons[@]}"; do
        make_venv "$python"
        say "installing $lock into .venv ($(.venv/bin/python --version))"
        read_sources
        choose_installer
        if install_lock; then
            install_repository
            compile_bytecode
            state >"$STAMP.new"
            mv "$STAMP.new" "$STAMP"
            rm "$UNFINISHED"
            return
        fi
    done
    die "could not install $lock (log: .venv/install.log); check the network and pip's settings, then run it again"
}

if [[ "${1:-}" == --check ]]; then
    complete || die "not set up: run 'bash setup.sh'"
    exec .venv/bin/python -m lab3.check
fi
if complete; then
    say "up to date (.venv, $device)"
    exit 0
fi
exec 9<setup.sh
flock 9 # two calls at once: the second waits and then finds everything done
if complete; then
    say "up to date (.venv, $device)"
    exit 0
fi
set_up
exec 9<&-
.venv/bin/python -m lab3.check
