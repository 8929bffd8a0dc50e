"""Ask simulated engines by the official client of OpenAI, and print what the client makes of the answers: JSON, a line an engine.

  openai_client.py MODEL ADAPTER http://127.0.0.1:8000/v1 ...
"""
import asyncio, json, sys

import openai

model, adapter, *urls = sys.argv[1:]
text = "What is told once need not be told again, as long as it is remembered. "
messages = [{"role": "system", "content": text}, {"role": "user", "content": [{"type": "text", "text": "Go on."}]}]


def usage(u):
    if u is None:
        return None
    details = u.prompt_tokens_details
    return dict(prompt=u.prompt_tokens, completion=u.completion_tokens, total=u.total_tokens, cached=details and details.cached_tokens)


def whole(r):
    c = r.choices[0]
    return dict(object=r.object, model=r.model, text=getattr(c, "text", None) or c.message.content, finish=c.finish_reason, usage=usage(r.usage))


def streamed(chunks):
    out = dict(text="", finish=None, usage=None, chunks=0, roles=[])
    for chunk in chunks:
        if chunk.usage:
            out["usage"] = usage(chunk.usage)
        for c in chunk.choices:
            out["chunks"] += 1
            out["text"] += (getattr(c, "text", None) or "") if not hasattr(c, "delta") else (c.delta.content or "")
            out["roles"] += [c.delta.role] if getattr(getattr(c, "delta", None), "role", None) else []
            out["finish"] = c.finish_reason or out["finish"]
    return out


def refused(client, **kw):
    try:
        client.completions.create(max_tokens=1, **kw)
    except openai.APIStatusError as e:
        return dict(kind=type(e).__name__, status=e.status_code, body=e.body if isinstance(e.body, dict) else None)


async def together(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as c:
        answers = await asyncio.gather(*[c.completions.create(model=model, prompt=[[1, 2, 3, n], [4, 5, n]], max_tokens=2) for n in range(8)])
        return [[len(a.choices), usage(a.usage)] for a in answers]


def asked(url):
    client = openai.OpenAI(base_url=url, api_key="-", max_retries=0)
    options = {"include_usage": True}
    complete, chat = client.completions.create, client.chat.completions.create
    return dict(
        models=[m.id for m in client.models.list().data],
        completion=whole(complete(model=model, prompt=text, max_tokens=7)),
        again=whole(complete(model=model, prompt=text, max_tokens=7)),
        salted=whole(complete(model=model, prompt=text, max_tokens=7, extra_body={"cache_salt": "a"})),
        adapter=whole(complete(model=adapter, prompt=text, max_tokens=7)),
        stream=streamed(complete(model=model, prompt=text, max_tokens=7, stream=True, stream_options=options)),
        chat=whole(chat(model=model, messages=messages, max_tokens=9)),
        ended=whole(chat(model=model, messages=messages)),
        chat_stream=streamed(chat(model=model, messages=messages, max_completion_tokens=9, stream=True, stream_options=options)),
        unasked=streamed(chat(model=model, messages=messages, max_tokens=9, stream=True)),
        unknown=refused(client, model="none", prompt=text),
        too_long=refused(client, model=model, prompt=[1] * 100_000),
        together=asyncio.run(together(url)),
    )


for url in urls:
    print(json.dumps(asked(url)))
