#!/usr/bin/env python3
"""Write the fields of the engines' requests to server/request/testdata/engine_fields.json.

    python3 -m venv .cache/venv-requests
    .cache/venv-requests/bin/pip install -r scripts/engines/requirements.txt
    .cache/venv-requests/bin/python scripts/engines/fields.py

A new release is added to RELEASES. The tests of server then name each field of which
it is not said whether it is skipped, honoured or refused.
"""

import json
import typing

import pydantic

from released import HERE, Released

RELEASES = [
    ("vllm", "0.11.0"), ("vllm", "0.18.0"), ("vllm", "0.24.0"), ("vllm", "0.28.0"), ("vllm", "0.32.0"), ("vllm", "0.33.0"),
    ("sglang", "0.5.3"), ("sglang", "0.5.9"), ("sglang", "0.5.16"), ("sglang", "0.5.23"),
]

MODULES = {
    "vllm": [
        "vllm.entrypoints.openai.protocol", "vllm.entrypoints.openai.engine.protocol", "vllm.entrypoints.generate.base.protocol",
        "vllm.entrypoints.serve.engine.protocol", "vllm.entrypoints.openai.chat_completion.protocol",
        "vllm.entrypoints.openai.completion.protocol", "vllm.entrypoints.anthropic.protocol",
        "vllm.entrypoints.openai.responses.protocol", "vllm.entrypoints.serve.tokenize.protocol",
    ],
    "sglang": ["sglang.srt.entrypoints.openai.protocol", "sglang.srt.entrypoints.anthropic.protocol"],
}

REQUESTS = {
    "ChatCompletionRequest": "chat", "CompletionRequest": "completion", "AnthropicMessagesRequest": "messages",
    "AnthropicCountTokensRequest": "count_tokens", "ResponsesRequest": "responses",
    "TokenizeChatRequest": "tokenize", "TokenizeCompletionRequest": "tokenize", "TokenizeRequest": "tokenize",
}

# What makes up a request of Anthropic's API.
PARTS = {"AnthropicMessage": "messages[]", "AnthropicContentBlock": "messages[].content[]", "AnthropicTool": "messages tools[]"}

class _Long:
    min, max = -(2**63), 2**63 - 1


VALUES = {"vllm.envs": {"VLLM_MAX_STOP_STRINGS": 64}, "torch": {"iinfo": lambda _: _Long, "long": int}}


def names(model):
    """Return the fields of a request as a body has them."""
    return {f.alias or name for name, f in model.model_fields.items()}


def block_types(model):
    return [t for t in typing.get_args(model.model_fields["type"].annotation) if isinstance(t, str)]


def fields(package, version):
    out = {}
    with Released(package, version, MODULES[package], VALUES) as engine:
        for name in MODULES[package]:
            if not engine.path(name):
                continue
            module = engine.load(name)
            for cls, api in (REQUESTS | PARTS).items():
                model = getattr(module, cls, None)
                if isinstance(model, type) and issubclass(model, pydantic.BaseModel) and model.__module__ == name:
                    out.setdefault(api, set()).update(names(model))
                    if cls == "AnthropicContentBlock":
                        out["messages[].content[].type"] = set(block_types(model))
    return {api: sorted(out[api]) for api in sorted(out)}


def main():
    got = {f"{p} {v}": fields(p, v) for p, v in RELEASES}
    for release, apis in got.items():
        print(release, {api: len(f) for api, f in apis.items()})
    rows = [f"{json.dumps(release)}: {{\n" + ",\n".join(f"  {json.dumps(a)}: {json.dumps(f)}" for a, f in apis.items()) + "\n}"
            for release, apis in got.items()]
    target = HERE.parent.parent / "server" / "request" / "testdata" / "engine_fields.json"
    target.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
