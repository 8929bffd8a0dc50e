#!/usr/bin/env bash
# One real vLLM engine on the CPU, with KV events: serve.sh MODEL-DIR PORT [vllm serve's own arguments]
# Events come from tcp://*:(PORT+1000), replays from PORT+2000. Of the environment: BLOCK (32; vLLM's CPU attention takes multiples of 32 only),
# BLOCKS (200: the KV cache's size in blocks, small so that it evicts), MAXLEN (4096), NAME (the model's served name), EVENTS (the JSON, in place of the default).
# With zygote.py running at $REALVLLM/zygote.fifo it forks the engine, and this returns at once: LOG and PID (files) say where it is; XENV adds to its environment (JSON).
set -euo pipefail
R=${REALVLLM:-$here/../.cache/realvllm}
model=$1 port=$2
shift 2
events='{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:'$((port + 1000))'","replay_endpoint":"tcp://*:'$((port + 2000))'"}'
set -- serve "$model" --host 127.0.0.1 --port "$port" --served-model-name "${NAME:-Qwen/Qwen3-8B}" \
  --dtype float32 --enforce-eager --max-model-len "${MAXLEN:-4096}" --block-size "${BLOCK:-32}" --num-gpu-blocks-override "${BLOCKS:-200}" \
  --max-num-seqs 8 --enable-prefix-caching --enable-auto-tool-choice --tool-call-parser hermes --enable-scale-out --enable-prompt-tokens-details --kv-events-config "${EVENTS:-$events}" "$@"
if [ -p "$R/zygote.fifo" ]; then
  python3 -c 'import json, os, sys
print(json.dumps({"name": sys.argv[1], "log": os.path.abspath(sys.argv[2]), "pid": os.path.abspath(sys.argv[3]), "env": json.loads(os.environ.get("XENV", "{}")), "args": sys.argv[4:]}))' \
    "$port" "${LOG:-vllm-$port.log}" "${PID:-vllm-$port.pid}" "$@" >"$R/zygote.fifo"
  exit 0
fi
export VLLM_TARGET_DEVICE=cpu VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1
exec "$R/venv/bin/vllm" "$@"
