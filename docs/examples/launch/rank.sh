#!/bin/bash
# One rank that Slurm started: its numbers under the names that torch reads.
set -euo pipefail
export RANK=$SLURM_PROCID
export WORLD_SIZE=$SLURM_NTASKS
export LOCAL_RANK=$SLURM_LOCALID
export LOCAL_WORLD_SIZE=${SLURM_NTASKS_PER_NODE%%[!0-9]*}
# shellcheck disable=SC1091
[ -z "${VENV:-}" ] || source "$VENV/bin/activate"
exec python -m accel_bridge.run -m accel_bridge.pretrain.pretrain_gpt "$@"
