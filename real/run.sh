#!/usr/bin/env bash
# kvatlas beside a real vLLM on this machine's CPU, from nothing: real/run.sh [REQUESTS|route]     (make real)
#
# setup.sh installs vLLM and makes tiny models (1.0 GB of downloads the first time, 2.9 GB of disk); then engines and kvatlas servers are started, and
#   drive.py      holds what kvatlas predicts of each request against the cached_tokens that vLLM then reports: plainly, with KV offloading, LoRA and salts,
#                 with offload events that describe themselves, and with index blocks smaller than the engine's; then it asks what recorded/ was asked, and
#                 holds it against that. RECORD=1 makes recorded/ anew instead; go test ./cmd/kvatlas -run Recorded holds kvatlas sim against it
#   tokens.py     compares the tokens of chats and texts, one by one
#   lifecycle.py  clears, pauses, stops, kills and starts the engine
#   route.py      sends conversations to two engines by /v1/route, and through kvatlas gateway, with three policies; of all this, `real/run.sh route` does this alone
# Ends with 1 if anything differs that the rules in drive.py do not explain. All that it starts is stopped again.
# Ports 18000, 18100, 18200, each +1000 and +2000, 18080 to 18083 and 18090 must be free.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
kvatlas=$root/bin/kvatlas n=${1:-200}
[ "$n" != route ] || n=0
export REALVLLM=${REALVLLM:-$root/.cache/realvllm}
start=$SECONDS
step() { printf '\n== real, %s [%ds]\n' "$1" $((SECONDS - start)); }

step "setup"
"$here/setup.sh" "$root"
cd "$REALVLLM"
rm -f vllm-*.pid
pids=()
stop() {
  for f in vllm-*.pid; do [ ! -f "$f" ] || kill "$(cat "$f")" 2>/dev/null || true; done
  [ ! -p zygote.fifo ] || timeout 5 sh -c 'echo stop >zygote.fifo' || true
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
}
trap stop EXIT
venv/bin/python "$here/zygote.py" "$REALVLLM/zygote.fifo" >zygote.log 2>&1 & pids+=($!)
until grep -q ^ready zygote.log; do kill -0 "${pids[0]}" || { tail -5 zygote.log; exit 1; }; sleep 1; done

up() { for _ in $(seq 300); do curl -fs -m 2 "127.0.0.1:$1/$2" >answer && return; sleep 1; done; echo "nothing answers on port $1"; exit 1; }
down() { kill "$(cat "vllm-$1.pid")"; rm -f "vllm-$1.pid"; }
pod() { echo "127.0.0.1:$1?model=Qwen/Qwen3-8B&engine=vllm&events=tcp://127.0.0.1:$(($1 + 1000))&replay=tcp://127.0.0.1:$(($1 + 2000))"; }
# serve PORT FLAG...: a kvatlas that reads the engines on 18000, 18100 and 18200.
serve() {
  local port=$1; shift
  env -u REALVLLM "$kvatlas" serve --listen "127.0.0.1:$port" --tokenizers tokenizers --hub-offline --score-budget 2s \
    --pods "$(pod 18000),$(pod 18100),$(pod 18200)" "$@" >"kvatlas-$port.log" 2>&1 & pids+=($!)
  up "$port" readyz
}
serve 18080
serve 18081 --block-size 16
serve 18082 --block-size 32
servers=(--kvatlas 64=http://127.0.0.1:18080 --kvatlas 16=http://127.0.0.1:18081 --kvatlas 32=http://127.0.0.1:18082)
rc=0
tiny=$REALVLLM/models/tiny-qwen3

# begin PORT COMMAND...: starts an engine; again-PORT.sh kills it and starts it in its place.
begin() {
  local port=$1; shift
  printf '#!/bin/sh\nkill -9 -- "-$(cat vllm-%s.pid)"\nsleep 3\nexec %s\n' "$port" "$(printf '%q ' "$@")" >"again-$port.sh"
  "$@"
  up "$port" health
}
# recorded NAME PORT SIM-FLAGS FLAG...: what drive.py asks with these flags, a clear and a restart among it, and what comes of it, is in recorded/NAME.json.
# kvatlas sim with SIM-FLAGS is the same engine.
recorded() {
  local file=$here/recorded/$1.json port=$2 sim=$3; shift 3
  local how=(--expect "$file")
  [ -z "${RECORD:-}" ] || how=(--record "$file" --sim "--engine-version=0.32.0 --block-size=32 $sim" --requests 150 --clear-at 60 --restart-at 110 "$@")
  python3 "$here/drive.py" --engine "http://127.0.0.1:$port" "${servers[@]}" --pod "127.0.0.1:$port" --restart "bash again-$port.sh" "${how[@]}" || rc=1
}

predictions() {
  step "requests, tokens and lives of one engine"
  engine="$here/serve.sh $tiny 18000 --trust-request-chat-template"
  begin 18000 "$here/serve.sh" "$tiny" 18000 --trust-request-chat-template
  python3 "$here/drive.py" "${servers[@]}" --pod 127.0.0.1:18000 --requests "$n" || rc=1
  python3 "$here/tokens.py" --kvatlas http://127.0.0.1:18080 || rc=1
  python3 "$here/lifecycle.py" --kvatlas http://127.0.0.1:18080 --pod 127.0.0.1:18000 --pid-file vllm-18000.pid --start "$engine" || rc=1
  recorded plain 18000 "--blocks=200"
  recorded ids 18000 "--blocks=200" --ids
  down 18000

  offload() { # NAME-OF-STEP FURTHER-JSON: an engine that offloads, with adapters and salts
    step "$1"
    begin 18100 env BLOCKS=100 MAXLEN=3000 "$here/serve.sh" "$tiny" 18100 --enable-lora --max-loras 2 --max-lora-rank 8 --lora-modules "alpha=$tiny-lora-alpha" "beta=$tiny-lora-beta" \
      --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"PlainCopySpec","spec_module_path":"cpu_offload_spec","cpu_bytes_to_use":9830400'"$2"'}}'
    python3 "$here/drive.py" --engine http://127.0.0.1:18100 "${servers[@]}" --pod 127.0.0.1:18100 --requests "$n" --salt --lora alpha beta || rc=1
  }
  offload "offloading, LoRA and salts" ""
  recorded offload 18100 "--blocks=100 --host-blocks=300 --loras=alpha,beta" --salt --lora alpha beta
  recorded offload-ids 18100 "--blocks=100 --host-blocks=300 --loras=alpha,beta" --ids --salt --lora alpha beta
  down 18100
  offload "offloading with events that describe themselves, LoRA and salts" ',"self_describing_kv_events":true'
  down 18100
}
[ "$n" = 0 ] || predictions

conversations() { # NAME BLOCKS: two engines with caches of so many blocks of 32 tokens
  local port engines=(--engine http://127.0.0.1:18000 --engine http://127.0.0.1:18200)
  step "conversations over two engines that have $1, by /v1/route"
  for port in 18000 18200; do BLOCKS=$2 MAXLEN=8192 "$here/serve.sh" "$REALVLLM/models/slow-qwen3" $port; done
  for port in 18000 18200; do up $port health; done
  python3 "$here/route.py" --kvatlas http://127.0.0.1:18080 "${engines[@]}"
  step "the same through kvatlas gateway, which is told the engines' addresses alone"
  env -u REALVLLM "$kvatlas" gateway --listen 127.0.0.1:18083 --gateway-listen 127.0.0.1:18090 --tokenizers tokenizers --hub-offline \
    --pods 127.0.0.1:18000,127.0.0.1:18200 >kvatlas-18083.log 2>&1 &
  local gateway=$!
  pids+=("$gateway")
  up 18090 health
  python3 "$here/route.py" --kvatlas http://127.0.0.1:18083 --gateway http://127.0.0.1:18090 "${engines[@]}"
  kill "$gateway"
  wait "$gateway" || rc=1
  for port in 18000 18200; do down $port; done
}
conversations "room for them" 800
conversations "room for a third of them" 260

step "done"
exit $rc
