#!/usr/bin/env python3
"""Compare the tokens that kvatlas gives to random requests with those of a running vLLM.

    vllm serve MODEL --enable-scale-out --enable-auto-tool-choice --tool-call-parser hermes ...
    kvatlas serve --tokenizers DIR
    scripts/engines/compare.py MODEL http://127.0.0.1:8000 http://127.0.0.1:8080 [COUNT] [SEED]

COUNT requests of each kind go to the render routes of both; the environment is that of
fields.py. Ends with 1 if both take a request and give it other tokens, or if kvatlas
refuses what vLLM takes.
"""

import collections
import json
import random
import sys
import urllib.error
import urllib.request

import requests as make

KINDS = {
    "chat": "/v1/chat/completions/render", "messages": "/v1/messages/render",
    "responses": "/v1/responses/render", "completion": "/v1/completions/render",
}


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as err:
        return err.code, err.read().decode()


def more(rng, body):
    """Add fields that engines take, some of which change the tokens."""
    fields = {
        "temperature": 0.1, "seed": None, "stop": ["x"], "logit_bias": None, "user": "u", "rid": "r", "session_id": "s", "cache_salt": "salt",
        "top_k": 5, "min_p": None, "stream": True, "response_format": None, "truncate_prompt_tokens": None, "mm_processor_kwargs": None,
        "add_special_tokens": rng.choice([True, False]), "add_generation_prompt": rng.choice([True, "true", 1, None]),
        "chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": rng.choice(["low", "none", "high"]),
    }
    return body | {name: value for name, value in fields.items() if rng.random() < 0.15 and value is not None or rng.random() < 0.02}


def completion(rng):
    body = {"max_tokens": 5, "prompt": rng.choice(["Hi", "two words", ["a", "b"], [1, 2, 3], [[1, 2], [3]], "\n\n x ", "Gr\u00fc\u00df <|im_start|>"])}
    return make.optional(rng, body, add_special_tokens=lambda r: r.choice([True, False]), truncate_prompt_tokens=lambda r: r.choice([2, 3, 50, -1, None]),
                         truncation_side=lambda r: r.choice(["left", "right", None]))


def request(rng, kind):
    match kind:
        case "chat":
            body = more(rng, make.chat_body(rng))
            if body.get("add_generation_prompt", 0) is None:
                del body["add_generation_prompt"]
            return body
        case "messages":
            return make.messages_body(rng)
        case "responses":
            return make.responses_body(rng)
        case _:
            return completion(rng)


def tokens(answer):
    return [a["token_ids"] for a in answer] if isinstance(answer, list) else answer["token_ids"]


def main(model, vllm, kvatlas, count="200", seed="1"):
    rng, found = random.Random(int(seed)), collections.Counter()
    for _ in range(int(count)):
        for kind, path in KINDS.items():
            body = request(rng, kind) | {"model": model}
            (there, theirs), (here, ours) = post(vllm + path, body), post(kvatlas + path, body)
            match there == 200, here == 200:
                case True, True:
                    verdict = "the same tokens" if tokens(theirs) == tokens(ours) else "OTHER TOKENS"
                case True, False:
                    verdict = "REFUSED HERE"
                case False, True:
                    verdict = "refused there"
                case _:
                    verdict = "refused by both"
            found[kind, verdict] += 1
            if verdict.isupper():
                print(f"{kind}: {verdict}\n  {json.dumps(body)}\n  vLLM    {str(theirs)[:300]}\n  kvatlas {str(ours)[:300]}")
    for (kind, verdict), n in sorted(found.items()):
        print(f"{n:6} {kind}: {verdict}")
    return any(verdict.isupper() for _, verdict in found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
