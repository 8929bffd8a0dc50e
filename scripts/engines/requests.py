#!/usr/bin/env python3
"""Write what vLLM makes of requests to tokenpool/chat/testdata/api.jsonl.gz.

Environment: see fields.py. Each line has a request (`api`, `body`) and what reaches the
chat template of it: `messages`, `tools`, `effort`, `kwargs`, `continue`. vLLM's own
request models and conversions run; what its server finds out about a model's template
is given: `merge` (systems belong in front) and the effort for thinking that is off.
`err` is there in the place of these for what vLLM refuses.

The file probes.jsonl.gz has what vLLM's probe finds of each template of
templates.json.gz: `t` and `merge`.
"""

import gzip
import importlib
import json
import random

import jinja2.ext  # noqa: F401 (which jinja2 alone does not import)
import jinja2.sandbox  # noqa: F401
import pydantic

from fields import VALUES
from released import HERE, Released

VERSION = "0.33.0"
DATA = HERE.parent.parent / "tokenpool" / "chat" / "testdata"
REAL = [
    "vllm.renderers.chat_utils.types", "vllm.exceptions", "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.serve.engine.protocol", "vllm.entrypoints.openai.chat_completion.protocol",
    "vllm.entrypoints.anthropic.protocol", "vllm.entrypoints.openai.responses.protocol", "vllm.tool_parsers.utils",
]


class Serving:
    """Base of vLLM's handlers, which do more than convert."""


def engine():
    values = {**VALUES, "vllm.entrypoints.openai.chat_completion.serving": {"OpenAIServingChat": Serving}, "vllm.utils": {"random_uuid": lambda: "0"}}
    return Released("vllm", VERSION, REAL, values)


def pick(rng, *choices):
    return rng.choice(choices)


SCHEMAS = [
    {"type": "object", "properties": {"city": {"type": "string", "description": "Wo? \u00e9"}}, "required": ["city"]},
    {"properties": {"n": {"type": "number", "minimum": 1.0, "maximum": 1e3}}},
    {"type": "object"}, {},
]
TEXTS = ["Hello", "Gr\u00fc\u00df Gott", "two\nlines", " ", "", "<|im_start|>", "x-anthropic-billing-header: cch=1", "{\"a\": 1}", "\U0001f600"]


def text(rng):
    return rng.choice(TEXTS)


def some(rng, most, make):
    return [make(rng) for _ in range(rng.randint(0, most))]


def optional(rng, into, **fields):
    for name, make in fields.items():
        if rng.random() < 0.4:
            into[name] = make(rng)
    return into


def shuffled(rng, d):
    keys = list(d)
    rng.shuffle(keys)
    return {k: d[k] for k in keys}


def chat_tool(rng):
    function = optional(rng, {"name": pick(rng, "f", "get_weather")}, description=text, parameters=lambda r: r.choice(SCHEMAS),
                        strict=lambda r: r.choice([True, False, None]), x=text, defer_loading=lambda r: r.choice([True, None]))
    tool = optional(rng, {"type": "function", "function": shuffled(rng, function)}, y=text, defer_loading=lambda r: r.choice([True, False]))
    return shuffled(rng, tool)


def call(rng):
    function = optional(rng, {"name": "f", "arguments": pick(rng, "{}", "{\"b\": 1.0, \"a\": [1e2]}", "{bad")}, z=text)
    c = optional(rng, {"id": "c1", "type": "function", "function": shuffled(rng, function)}, index=lambda r: 0)
    if rng.random() < 0.05:
        del c[rng.choice(["id", "type"])]
    return shuffled(rng, c)


def chat_message(rng):
    role = pick(rng, "user", "assistant", "assistant", "tool", "system")
    m = {"role": role, "content": text(rng)}
    if role == "assistant":
        if rng.random() < 0.3:
            m["content"] = None
        optional(rng, m, tool_calls=lambda r: some(r, 2, call), reasoning_content=text, name=lambda r: "n", cache_control=lambda r: {"type": "ephemeral"})
    if role == "tool":
        m["tool_call_id"] = "c1"
    return shuffled(rng, m)


def chat_body(rng):
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}] + some(rng, 4, chat_message)}
    return optional(rng, body, tools=lambda r: [chat_tool(r) for _ in range(r.randint(1, 3))], temperature=lambda r: 0.5)


def source(rng):
    return pick(rng, {"type": "base64", "media_type": "image/png", "data": "aWk="}, {"type": "url", "url": "http://x/y.png"})


def block(rng, role):
    kinds = ["text", "text", "text", "tool_use", "thinking", "redacted_thinking"] if role == "assistant" else ["text", "text", "image", "tool_result", "tool_result"]
    if role == "system":
        kinds = ["text"]
    kind = rng.choice(kinds)
    b = {"type": kind}
    match kind:
        case "text":
            b["text"] = text(rng)
            optional(rng, b, cache_control=lambda r: {"type": "ephemeral"})
        case "image":
            b["source"] = source(rng)
        case "tool_use":
            b |= {"id": "toolu_1", "name": "f", "input": pick(rng, {}, {"b": 1.0, "a": [100, "\u00e9", None]}, {"n": 12345678901234567890})}
            if rng.random() < 0.1:
                b["input"] = None
        case "thinking":
            b |= {"thinking": text(rng), "signature": "s"}
        case "redacted_thinking":
            b["data"] = "ZGF0YQ=="
        case "tool_result":
            b["tool_use_id"] = "toolu_1"
            optional(rng, b, is_error=lambda r: True)
            result = rng.random()
            if result < 0.4:
                b["content"] = text(rng)
            elif result < 0.8:
                b["content"] = some(rng, 3, lambda r: r.choice([{"type": "text", "text": text(r)}, {"type": "image", "source": source(r)},
                                                               {"type": "tool_reference", "tool_name": "f"}, {"type": "tool_reference", "name": "g"}, {"type": "other"}]))
    return b


def change(rng):
    return pick(
        rng,
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": anthropic_tool(rng)}},
    )


def anthropic_message(rng):
    role = pick(rng, "user", "user", "assistant", "assistant", "system")
    if rng.random() < 0.3:
        return {"role": role, "content": text(rng)}
    content = some(rng, 3, lambda r: block(r, role))
    if role == "system" and rng.random() < 0.3:
        content.append(change(rng))
    return {"role": role, "content": content}


def anthropic_tool(rng):
    return optional(rng, {"name": pick(rng, "f", "g"), "input_schema": dict(rng.choice(SCHEMAS))}, description=text,
                    cache_control=lambda r: {"type": "ephemeral"}, strict=lambda r: r.choice([True, False, None]), defer_loading=lambda r: r.choice([True, False, None]))


def messages_body(rng):
    body = {"model": "m", "max_tokens": 2048, "messages": [{"role": "user", "content": "a"}] + some(rng, 5, anthropic_message)}
    return optional(
        rng, body, system=lambda r: r.choice([text(r), [block(r, "system") for _ in range(r.randint(0, 3))]]),
        tools=lambda r: some(r, 3, anthropic_tool), tool_choice=lambda r: {"type": "auto"}, stop_sequences=lambda r: ["x"],
        thinking=lambda r: r.choice([{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}]),
        output_config=lambda r: r.choice([{"effort": "low"}, {"effort": "max"}, {"format": {"type": "json_schema", "schema": {"type": "object"}}}]),
        chat_template_kwargs=lambda r: {"a": 1}, metadata=lambda r: {"user_id": "u"},
    )


def input_part(rng):
    return pick(rng, {"type": "input_text", "text": text(rng)}, {"type": "input_text", "text": text(rng)},
                {"type": "input_image", "image_url": "data:image/png;base64,aWk=", "detail": "auto"})


def item(rng):
    kind = pick(rng, "user", "user", "easy", "easy list", "output", "output", "function_call", "function_call", "function_call_output", "reasoning",
                "reasoning", "custom_tool_call", "custom_tool_call_output", "system", "developer")
    if rng.random() < 0.01:
        kind = "item_reference"
    status = rng.choice(["completed", "completed", "in_progress", "incomplete"])
    match kind:
        case "user" | "system" | "developer":
            m = {"role": kind, "content": pick(rng, text(rng), [input_part(rng) for _ in range(rng.randint(1, 3))])}
            return optional(rng, m, type=lambda r: "message")
        case "easy":
            return optional(rng, {"role": "assistant", "content": text(rng)}, type=lambda r: "message")
        case "easy list":
            return {"role": "assistant", "content": [{"type": "input_text", "text": text(rng)}, {"type": "input_text", "text": "more"}]}
        case "output":
            m = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text(rng)} for _ in range(rng.randint(1, 2))]}
            return optional(rng, m, id=lambda r: "msg_1", status=lambda r: status)
        case "function_call":
            return optional(rng, {"type": kind, "call_id": "c1", "name": "f", "arguments": pick(rng, "{}", "{\"b\": 1.0}", "{bad")},
                            id=lambda r: "fc_1", status=lambda r: status, namespace=lambda r: "ns")
        case "custom_tool_call":
            return {"type": kind, "call_id": "c2", "name": "shell", "input": text(rng)}
        case "function_call_output" | "custom_tool_call_output":
            return {"type": kind, "call_id": "c1", "output": pick(rng, text(rng), [{"type": "input_text", "text": "r"}, {"type": "input_text", "text": "s"}])}
        case "reasoning":
            r = {"type": kind, "summary": pick(rng, [], [{"type": "summary_text", "text": "in short"}])}
            return optional(rng, r, content=lambda q: q.choice([[], [{"type": "reasoning_text", "text": text(q)}]]), status=lambda q: status,
                            encrypted_content=lambda q: q.choice([None, None, None, "gAAA"]), id=lambda q: "rs_1")
        case _:
            return {"type": "item_reference", "id": "msg_1"}


def responses_tool(rng):
    kind = pick(rng, "function", "function", "custom", "namespace", "web_search")
    function = optional(rng, {"type": "function", "name": "f", "parameters": rng.choice(SCHEMAS), "strict": pick(rng, True, False, None)},
                        description=text, defer_loading=lambda r: True)
    match kind:
        case "function":
            return shuffled(rng, function)
        case "custom":
            return optional(rng, {"type": "custom", "name": "shell"}, description=text,
                            format=lambda r: r.choice([{"type": "text"}, {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}]))
        case "namespace":
            return {"type": "namespace", "name": "ns", "description": "d", "tools": [function]}
        case _:
            return {"type": "web_search"}


def responses_body(rng):
    body = {"model": "m", "input": text(rng) or "x"}
    if rng.random() < 0.8:
        body["input"] = [{"role": "user", "content": "a"}] + some(rng, 6, item)
    return optional(rng, body, instructions=text, tools=lambda r: some(r, 3, responses_tool), reasoning=lambda r: r.choice([{"effort": "low"}, {"effort": "none"}, {"summary": "auto"}]),
                    chat_template_kwargs=lambda r: {"a": 1}, max_output_tokens=lambda r: 10, store=lambda r: False, text=lambda r: {"format": {"type": "text"}})


def plain(value):
    return json.loads(json.dumps(value, default=lambda v: v.model_dump() if hasattr(v, "model_dump") else list(v)))


def seen_by_template(messages, tools, effort, kwargs, open_ended=False):
    return {"messages": plain(messages), "tools": plain(tools), "effort": effort, "kwargs": kwargs, "continue": open_ended}


def main():
    rng = random.Random(12)
    lines = []
    with engine() as e:
        types = e.load("vllm.renderers.chat_utils.types")
        utils = importlib.import_module("vllm.renderers.chat_utils")
        for name in types.__all__:
            setattr(utils, name, getattr(types, name))
        utils.make_tool_call_id = lambda *a, **k: "made up"
        chat = e.load("vllm.entrypoints.openai.chat_completion.protocol")
        anthropic = e.load("vllm.entrypoints.anthropic.protocol")
        serving = e.load("vllm.entrypoints.anthropic.serving").AnthropicServingMessages
        responses = e.load("vllm.entrypoints.openai.responses.protocol")
        convert = e.load("vllm.entrypoints.openai.responses.utils")
        refused = (pydantic.ValidationError, ValueError, AttributeError, IndexError, e.load("vllm.exceptions").VLLMValidationError)

        def of_chat(request):
            tools = None if request.tools is None else [t.model_dump() for t in request.tools]
            return seen_by_template(request.messages, tools, request.reasoning_effort, request.chat_template_kwargs)

        def line(api, body, make, **also):
            sent = json.dumps(body)
            try:
                out = make(json.loads(sent))
            except refused as err:
                out = {"err": f"{type(err).__name__}: {err}".splitlines()[0][:200]}
            lines.append({"api": api, "body": sent, **also, **out})

        for _ in range(500):
            line("chat", chat_body(rng), lambda b: of_chat(chat.ChatCompletionRequest(**b)))
        for i in range(800):
            merge, off = i % 2 == 0, ["none", "low"][i // 2 % 2]
            line("messages", messages_body(rng), lambda b: of_chat(serving.to_chat_completion_request(
                anthropic.AnthropicMessagesRequest(**b), merge_inline_system=merge, disabled_thinking_effort=off)), merge=merge, off=off)

        def of_responses(b):
            request = responses.ResponsesRequest(**b)
            messages = convert.construct_input_messages(request_instructions=request.instructions, request_input=request.input)
            effort = request.reasoning.effort if request.reasoning else None
            return seen_by_template(messages, convert.construct_tool_dicts(request.tools, request.tool_choice), effort,
                                    request.chat_template_kwargs, convert.should_continue_final_message(request.input))

        for _ in range(800):
            line("responses", responses_body(rng), of_responses)

        templates = json.loads(gzip.decompress((DATA / "templates.json.gz").read_bytes()))
        probes = [{"t": name, "merge": serving._detect_merge_inline_system(src)} for name, src in templates.items()]
    write("api.jsonl.gz", lines)
    write("probes.jsonl.gz", probes)
    for api in ("chat", "messages", "responses"):
        of = [x for x in lines if x["api"] == api]
        print(api, len(of), "refused", sum("err" in x for x in of))
    print("templates", len(probes), "that merge", sum(p["merge"] for p in probes))


def write(name, lines):
    data = "".join(json.dumps(x, ensure_ascii=True) + "\n" for x in lines).encode()
    (DATA / name).write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main()
