#!/usr/bin/env python3
"""Make the golden tokens of tiktoken files in testdata/tokens with OpenAI's library.

    scripts/fetch-tokenizers.sh && scripts/make-tiktoken-goldens.py              # write them
    scripts/fetch-tokenizers.sh && scripts/make-tiktoken-goldens.py --check      # compare with those committed
    scripts/fetch-tokenizers.sh && scripts/make-tiktoken-goldens.py --random N DIR

The files are made of real vocabularies: tiktoken.model of Llama 3's, with the expression, the special tokens and
the cuts of long texts of Kimi's tokenization_kimi.py; qwen.tiktoken of Qwen 3's, which is that of Qwen 1, with
tokenization_qwen.py's. The texts are those of make-token-goldens.py, and some that are long without a cut. --random
makes N other ones, for KVATLAS_TEST_TIKTOKEN=DIR go test ./tokenpool -run Tiktoken.
"""

import argparse
import gzip
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import os
import unicodedata

LIBRARY = "0.14.0"
ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "testdata" / "tokens"

spec = importlib.util.spec_from_file_location("goldens", ROOT / "scripts" / "make-token-goldens.py")
goldens = importlib.util.module_from_spec(spec)
spec.loader.exec_module(goldens)

KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As in Kimi K2's tokenizer_config.json, by their place behind the tokens of the file.
KIMI_SPECIAL = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: "<|start_header_id|>",
    7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>", 17: "<|im_middle|>", 254: "[UNK]", 255: "[PAD]",
}  # fmt: skip


def import_tiktoken():
    """Import the reference library, from a virtual environment that is made on first use."""
    try:
        import tiktoken
    except ImportError:
        tiktoken = None
    if tiktoken is not None and tiktoken.__version__ == LIBRARY:
        return tiktoken
    venv = ROOT / ".cache" / f"venv-tiktoken-{LIBRARY}"
    python = venv / "bin" / "python"
    if pathlib.Path(sys.prefix) == venv:
        sys.exit(f"goldens: {venv} holds no tiktoken {LIBRARY}; remove it and run this again")
    if not python.exists():
        print(f"goldens: installing tiktoken {LIBRARY} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", f"tiktoken=={LIBRARY}"], check=True)
    os.execv(python, [str(python), *sys.argv])


def bytes_of_chars():
    """The bytes that byte-level BPE writes as these characters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    out = {chr(b): b for b in printable}
    for b in range(256):
        if b not in printable:
            out[chr(256 + len(out) - len(printable))] = b
    return out


def ranks_of(model):
    """The vocabulary of a byte-level tokenizer.json as tiktoken's ranks."""
    path = ROOT / ".cache" / "tokenizers" / model / "tokenizer.json"
    if not path.exists():
        sys.exit(f"goldens: {path} is missing: run scripts/fetch-tokenizers.sh first")
    chars = bytes_of_chars()
    vocab = json.loads(path.read_text())["model"]["vocab"]
    return {bytes(chars[c] for c in token): rank for token, rank in vocab.items()}


class Kimi:
    """Text is split at special tokens first (transformers), then cut (tokenization_kimi.py), then tokenized."""

    def __init__(self, tiktoken):
        ranks = ranks_of("meta-llama/Meta-Llama-3-8B-Instruct")
        self.special = {KIMI_SPECIAL.get(i, f"<|reserved_token_{len(ranks) + i}|>"): len(ranks) + i for i in range(256)}
        self.bpe = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=self.special)
        names = sorted(KIMI_SPECIAL.values(), key=len, reverse=True)
        self.split = re.compile("(" + "|".join(map(re.escape, names)) + ")")

    def encode(self, text):
        out = []
        for part in self.split.split(text):
            for i in range(0, len(part), 400_000):
                for run in self.runs(part[i : i + 400_000]):
                    out += self.bpe.encode(run, allowed_special="all")
        return out

    @staticmethod
    def runs(text):
        start, length, space = 0, 0, text[:1].isspace()
        for i, c in enumerate(text):
            if c.isspace() != space:
                length, space = 1, not space
                continue
            length += 1
            if length > 25_000:
                yield text[start:i]
                start, length = i, 1
        yield text[start:]


class Qwen:
    def __init__(self, tiktoken):
        ranks = ranks_of("Qwen/Qwen3-8B")
        names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
        self.special = {name: 151643 + i for i, name in enumerate(names)}
        self.bpe = tiktoken.Encoding("qwen", pat_str=QWEN, mergeable_ranks=ranks, special_tokens=self.special)

    def encode(self, text):
        return self.bpe.encode(unicodedata.normalize("NFC", text), allowed_special="all")


def long_texts():
    """What has a place where tokenization_kimi.py cuts, and what just has none."""
    for n in (25_000, 25_001, 60_000):
        yield "a1-" * (n // 3) + "b" * (n % 3)
        yield " " * n
        yield "x" + "\n\t" * (n // 2) + "y"
        yield "é" * n + " " + "中" * n
    yield "word " * 90_000
    yield "<|im_end|>" + "ab" * 12_000 + "<|im_user|>" + "cd" * 12_000 + "\x1c\x1c" + "e" * 25_002
    yield "word\n" * 79_999 + "[EOS]" + "other words " * 40_000


def random_texts(n):
    maker = goldens.Maker(7)
    kinds = ["english", "code", "whitespace", "numbers", "special", "emoji", "combining", "controls", "unicode", "mixed"]
    mine = [*KIMI_SPECIAL.values(), "<|endoftext|>", "<|im_start|>", "<|extra_7|>", "<|reserved_token_128005|>"]
    for _ in range(n):
        kind = maker.r.choice([*kinds, *goldens.SCRIPTS])
        size = maker.length(1, 60)
        text = maker.script(kind, size) if kind in goldens.SCRIPTS else getattr(maker, kind)(max(1, size // 6))
        if maker.r.random() < 0.3:
            at = maker.r.randrange(len(text) + 1)
            text = text[:at] + maker.r.choice(mine) + text[at:]
        if "\0" not in text:
            yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the committed files differ")
    parser.add_argument("--random", nargs=2, metavar=("N", "DIR"), help="make N random texts and their tokens in DIR")
    args = parser.parse_args()
    library = import_tiktoken()
    out = pathlib.Path(args.random[1]) if args.random else OUT
    if args.random:
        texts = list(random_texts(int(args.random[0])))
        more = goldens.lines({"id": i, "kind": "random", "text": t} for i, t in enumerate(texts))
    else:
        texts = list(long_texts())
        more = goldens.lines({"id": i, "kind": "long", "text": t} for i, t in enumerate(texts))
        texts = [text for _, text in goldens.make_texts()] + texts
    files = {"tiktoken-texts.jsonl.gz": more}
    for name, tokenizer in (("kimi", Kimi(library)), ("qwen", Qwen(library))):
        lines = []
        for i, text in enumerate(texts):
            ids = tokenizer.encode(text)
            lines.append({"id": i, "n": len(ids), "ids": goldens.digest(ids)})
        files[f"tiktoken-{name}.jsonl.gz"] = goldens.lines(lines)
    first = 128000
    config = {"added_tokens_decoder": {str(first + i): {"content": name, "special": True} for i, name in KIMI_SPECIAL.items()}}
    files["tiktoken-kimi-config.json"] = (json.dumps(config, indent=1) + "\n").encode()
    differs = False
    for name, data in files.items():
        path = out / name
        if args.check:
            have = path.read_bytes() if path.exists() else b""
            if (gzip.decompress(have) if have and name.endswith(".gz") else have) != data:
                print(f"goldens: testdata/tokens/{name} differs", file=sys.stderr)
                differs = True
            continue
        out.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, 9, mtime=0) if name.endswith(".gz") else data)
        print(f"goldens: wrote {path.name}, {path.stat().st_size // 1024} KiB", file=sys.stderr)
    if args.check and not differs:
        print("goldens: the committed files are what the reference library gives", file=sys.stderr)
    sys.exit(differs)


if __name__ == "__main__":
    main()
