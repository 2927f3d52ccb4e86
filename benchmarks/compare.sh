#!/bin/sh
# The comparison of docs/benchmarks.md with llama-server and llama-cpp-python's example server, about 30 minutes on two
# cores with SmolLM2, with nothing else running.
#
#     tools/build_llama_server.sh ~/peers && benchmarks/compare.sh ~/peers [MODEL]
set -eu

peers=$1
model=${2:-smollm2}
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/benchmarks/results/bench
bench() { # FOLDER SERVERS WORKLOAD...
    folder=$results/$1-$(basename "$model" .gguf)
    servers=$2
    shift 2
    "${PYTHON:-$root/.venv/bin/python}" -m forerun bench --compare "$servers" --peers "$peers" --model "$model" \
        --rounds "${ROUNDS:-4}" --output "$folder" "$@"
    rm -rf "$folder/logs" # paths and ports of one machine
}

# `|| :`: a server that fails in one comparison must not keep the others from being made.
bench peers llama-server,llama-cpp-python,forerun \
    single prefill concurrent:streams=8 turns stall crowd fan-out || :
# The best of these n-gram settings here; forerun:off is what drafts must not be slower than.
bench drafts llama-server:ngram-map-k/3/16,llama-server:ngram-simple/3/16,llama-server,forerun:off,forerun:auto \
    copy creative || :
# The Python example is left out: at libgomp's defaults it keeps next to nothing, and takes minutes for that.
bench disturbed llama-server,forerun disturbed || :
