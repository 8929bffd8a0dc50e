"""Decode messages as a release of an engine does.

  decoder.py --engine vllm --module DIR/vllm-0.33.0

Each line of stdin is {"op": "decode", "payload": "<hex>"}, answered by {"events": [{"type": "BlockStored", ...}], "rank": 0}.
"""


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--engine", choices=["vllm", "sglang"], required=True)
    ap.add_argument("--module", required=True)
    o = ap.parse_args()
    logging.disable(logging.CRITICAL)
    # Of releases whose cache is not run the module that has this type is not there.
    events = load(o.engine, o.module, {"vllm.v1.core.kv_cache_utils": {"ExternalBlockHash": bytes | int}})
    decode = msgspec.msgpack.Decoder(type=events.KVEventBatch).decode
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        b = decode(bytes.fromhex(json.loads(line)["payload"]))
        told = [{"type": type(e).__name__, **{f: getattr(e, f) for f in e.__struct_fields__}} for e in b.events]
        rank = getattr(b, "data_parallel_rank", None)
        print(json.dumps({"events": told, "rank": getattr(b, "attn_dp_rank", None) if rank is None else rank}), flush=True)


main()
