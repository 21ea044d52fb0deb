# shellcheck shell=bash
# Sourced first by every script of the lab:
#   source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
# It sets the repository up, puts .venv first in PATH, loads the profile, exports the profile's
# values and makes the local model if the profile asks for one. Afterwards the shell stands in the
# repository root. Messages go to stderr, so that stdout belongs to the script.
#
#   PROFILE=cpu|cpu-full|gpu  choose a profile instead of the one for this machine
#   KEY=VALUE                 any key of profiles/*.env overrides the profile's value
#   LAB3_DEVICE=cpu|gpu       decide about the device instead of asking nvidia-smi
#   LAB3_SKIP_SETUP=1         do not run setup.sh (use .venv, or else the python in PATH)
#   DRY_RUN=1                 commands are only printed: no model is made
set -euo pipefail

LAB3_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$LAB3_ROOT"

die() {
    echo "error: $*" >&2
    exit 2
}

if [[ "${LAB3_SKIP_SETUP:-0}" != 1 ]]; then
    bash setup.sh >&2 || exit $?
fi
if [[ -x .venv/bin/python ]]; then
    export VIRTUAL_ENV="$LAB3_ROOT/.venv"
    export PATH="$LAB3_ROOT/.venv/bin:$PATH"
fi
# The engine is another process and imports the scheduler class by name, from any folder.
export PYTHONPATH="$LAB3_ROOT${PYTHONPATH:+:$PYTHONPATH}"

# vLLM's client trusts the proxy variables even for 127.0.0.1.
export NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}"
export no_proxy="$NO_PROXY"
export VLLM_NO_USAGE_STATS=1
# uvicorn's own 5 s let it close a connection that the client is about to use again: such requests
# end as "Server disconnected" although the engine is well.
export VLLM_HTTP_TIMEOUT_KEEP_ALIVE="${VLLM_HTTP_TIMEOUT_KEEP_ALIVE:-120}"

PROFILE="${PROFILE:-$(bash scripts/device.sh)}"
if [[ ! -f "profiles/$PROFILE.env" ]]; then
    known="$(cd profiles && echo *.env)"
    die "no profile '$PROFILE': set PROFILE to one of: ${known//.env/}"
fi
export PROFILE
set -a
# shellcheck source=/dev/null
source "profiles/$PROFILE.env"
set +a
echo "profile $PROFILE: $PROFILE_NOTE" >&2

if [[ "$MODEL" == local:* ]]; then
    export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"
    if [[ "${DRY_RUN:-0}" != 1 ]]; then
        python -m lab3.local_model "${MODEL#local:}" >&2 || exit $?
    fi
    MODEL="models/${MODEL#local:}"
fi
