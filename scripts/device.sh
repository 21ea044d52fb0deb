#!/usr/bin/env bash
# Prints the device of this machine: "gpu" when an NVIDIA driver answers, else "cpu".
# LAB3_DEVICE=cpu|gpu decides instead of asking. The one place that looks for a GPU.
set -euo pipefail

case "${LAB3_DEVICE:-}" in
cpu | gpu) echo "$LAB3_DEVICE" ;;
"")
    # `nvidia-smi -L` exits 0 with an empty list on a machine whose driver sees no device.
    if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
        echo gpu
    else
        echo cpu
    fi
    ;;
*)
    echo "LAB3_DEVICE is '$LAB3_DEVICE': set it to cpu or gpu, or unset it" >&2
    exit 2
    ;;
esac
