"""Talk to gateways by the official client of OpenAI.

  gateway_client.py once MODEL URL           print what the client makes of each kind of answer
  gateway_client.py storm MODEL URL URL ...  ask until stdin ends, and print a line for each request that has ended
"""
import concurrent.futures, json, random, sys, threading

import openai

mode, model, *urls = sys.argv[1:]
rules = "You are the clerk of a library and answer in one sentence. " * 20
tools = [{"type": "function", "function": {"name": "find", "description": "Find a book.", "parameters": {"type": "object", "properties": {"title": {"type": "string"}}}}}]
image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}}


def client(url):
    # No retries: each error is seen.
    return openai.OpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=120)


def says(*content):
    return [{"role": "system", "content": rules}, {"role": "user", "content": list(content)}]


def text(t):
    return {"type": "text", "text": t}


def once(url):
    c = client(url)
    out = {"models": [m.id for m in c.models.list().data]}
    for name, kw in {
        "chat": dict(messages=says(text("Where is Ulysses?"))),
        "again": dict(messages=says(text("Where is Ulysses?"))),
        "tools": dict(messages=says(text("Where is Ulysses?")), tools=tools, tool_choice="auto"),
        "image": dict(messages=says(text("What is this?"), image)),
    }.items():
        r = c.chat.completions.create(model=model, max_tokens=6, **kw)
        out[name] = [r.choices[0].message.content, r.choices[0].finish_reason, r.usage.prompt_tokens, r.usage.prompt_tokens_details.cached_tokens]
        chunks = list(c.chat.completions.create(model=model, max_tokens=6, stream=True, **kw))
        out[name + " streamed"] = ["".join(x.choices[0].delta.content or "" for x in chunks), len(chunks), any(x.usage for x in chunks)]
        chunks = list(c.chat.completions.create(model=model, max_tokens=6, stream=True, stream_options={"include_usage": True}, **kw))
        out[name + " with usage"] = [len(chunks), chunks[-1].usage.prompt_tokens_details.cached_tokens]
    try:
        c.chat.completions.create(model="no such model", messages=says(text("x")))
    except openai.NotFoundError as e:
        out["unknown"] = e.body["message"]
    print(json.dumps(out))


def storm():
    ended, lock = threading.Event(), threading.Lock()

    def ask(c, gateway, rng):
        kw = dict(model=model, max_tokens=rng.choice([1, 8, 40]), messages=says(text(f"Question {rng.randrange(60)}: " + "word " * rng.randrange(200))))
        kind = rng.choice(["whole", "stream", "stream", "tools", "image"])
        if kind == "tools":
            kw["tools"] = tools
        if kind == "image":
            kw["messages"][-1]["content"].append(image)
        out = dict(kind=kind, gateway=gateway, begun=False, error="")
        try:
            if kind == "stream":
                finish = None
                for chunk in c.chat.completions.create(stream=True, **kw):
                    out["begun"] = True
                    finish = chunk.choices[0].finish_reason or finish
                if not finish:
                    out["error"] = "the stream has ended without a reason"
            else:
                c.chat.completions.create(**kw)
        except Exception as e:  # whatever it is, it is told
            out["error"] = f"{type(e).__name__}: {e}"
        with lock:
            print(json.dumps(out), flush=True)

    def work(n):
        rng, clients = random.Random(n), [client(u) for u in urls]
        while not ended.is_set():
            gateway = rng.randrange(len(urls))
            ask(clients[gateway], gateway, rng)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        jobs = [pool.submit(work, n) for n in range(12)]
        sys.stdin.read()
        ended.set()
        for j in jobs:
            j.result()


once(urls[0]) if mode == "once" else storm()
