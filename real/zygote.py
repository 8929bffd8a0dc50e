#!/usr/bin/env python3
"""Start vLLM servers without importing vLLM for each: one process imports it and forks a server for each command.

  zygote.py FIFO      then:  echo '{"name":"v1","log":"v1.log","pid":"v1.pid","env":{"VLLM_X":"1"},"args":["serve","MODEL","--port","18000"]}' > FIFO

A plain `vllm serve` imports everything three times (server, engine core, worker: 60 s of CPU on a slow machine, each). Here these three are forks of
the one process. It is the same code, with one change: processes are made by fork instead of spawn, which vLLM avoids on the CPU
because of OpenMP's threads; OMP_NUM_THREADS=1 (set here) has none. serve.sh uses the zygote when $REALVLLM/zygote.fifo is there.
"""
import json, multiprocessing, os, signal, sys

os.environ.update(VLLM_TARGET_DEVICE="cpu", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_SERVER_DEV_MODE="1", VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", VLLM_CPU_KVCACHE_SPACE="1")

import vllm.utils.system_utils as system_utils
system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
import torch
torch.set_num_threads(1)
import vllm.entrypoints.cli.main, vllm.entrypoints.openai.api_server, vllm.entrypoints.cli.serve  # noqa: F401,E401
import vllm.v1.engine.core, vllm.v1.executor.multiproc_executor, vllm.v1.worker.cpu_worker, vllm.v1.worker.cpu_model_runner  # noqa: F401,E401
import vllm.model_executor.models.qwen3, vllm.model_executor.models.llama, vllm.v1.attention.backends.cpu_attn  # noqa: F401,E401


def child(cmd):
    log = os.open(cmd["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1), os.dup2(log, 2)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(cmd.get("env", {}))
    sys.argv = ["vllm"] + cmd["args"]
    try:
        vllm.entrypoints.cli.main.main()
    except SystemExit as e:
        os._exit(e.code if isinstance(e.code, int) else 1)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main():
    fifo = sys.argv[1]
    if os.path.exists(fifo):
        os.unlink(fifo)
    os.mkfifo(fifo, 0o600)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)      # their ends are not waited for
    print("ready", flush=True)
    while True:
        with open(fifo) as f:
            for line in f:
                if line.strip() == "stop":
                    os.unlink(fifo)
                    return
                cmd = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    child(cmd)
                with open(cmd["pid"], "w") as out:
                    out.write(f"{pid}\n")
                print("started", cmd["name"], pid, flush=True)


if __name__ == "__main__":
    main()
