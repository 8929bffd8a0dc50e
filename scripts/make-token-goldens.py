#!/usr/bin/env python3
"""Make the golden tokens in testdata/tokens with the reference library.

    scripts/fetch-tokenizers.sh && scripts/make-token-goldens.py          # write them
    scripts/fetch-tokenizers.sh && scripts/make-token-goldens.py --check  # compare with those committed

The texts are made from a fixed seed, so that the script can be read instead of the data; they are stored all
the same, since the tests must not need Python. The reference is the package `tokenizers` (Hugging Face), at the
version below, in a virtual environment of its own under .cache. testdata/tokens/README.md says what the files
hold.
"""

import argparse
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import unicodedata

LIBRARY = "0.23.3"
SEED = 20240607
FULL = 100  # texts whose ids and ends are stored in full
ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "testdata" / "tokens"
TOKENIZERS = [
    ("llama3", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ("qwen3", "Qwen/Qwen3-8B"),
    ("bert", "google-bert/bert-base-uncased"),
]


def import_tokenizers():
    """Import the reference library, from a virtual environment that is made on first use."""
    try:
        import tokenizers
    except ImportError:
        tokenizers = None
    if tokenizers is not None and tokenizers.__version__ == LIBRARY:
        return tokenizers
    venv = ROOT / ".cache" / f"venv-tokenizers-{LIBRARY}"
    python = venv / "bin" / "python"
    if pathlib.Path(sys.prefix) == venv:
        sys.exit(f"goldens: {venv} holds no tokenizers {LIBRARY}; remove it and run this again")
    if not python.exists():
        print(f"goldens: installing tokenizers {LIBRARY} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", f"tokenizers=={LIBRARY}"], check=True)
    os.execv(python, [str(python), *sys.argv])


# --- what the texts are made of -------------------------------------------------------------------------------

ENGLISH = """
the of and a to in is it you that he was for on are with as I his they be at one have this from or had by not
but what some we can out other were all there when up use your how said an each she which do their time if will
way about many then them write would like so these her long make thing see him two has look more day could go
come did number sound no most people my over know water than call first who may down side been now find any new
work part take get place scheduler latency throughput prefix cache eviction replica tokenizer inference
distributed concurrency asynchronous unbelievably antidisestablishmentarianism co-operate state-of-the-art don't
can't we'll they've I'd it's naïve café résumé Dr. e.g. i.e. U.S.A. iPhone GPUs HTTP/2 IPv6 C++ C# .NET node.js
README.md
""".split()
SCRIPTS = {
    "chinese": (
        "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所"
        "分布式系统缓存键值对调度器前缀命中率吞吐量延迟模型推理注意力机制龘靐齉𠀀𠮷",
        "",
        "，。！？；：“”（）《》、",
    ),
    "japanese": (
        "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
        "アイウエオカキクケコサシスセソガギグゲゴパピプペポー日本語東京機械学習推論ｱｲｳｴｵｶﾞ",
        "",
        "、。「」！？・",
    ),
    "korean": (
        "안녕하세요세계한국어분산시스템캐시접두사토큰화모델추론가나다라마바사아자차카타파하꽃닭값읽ㅋㅎ",
        " ",
        ".,!?",
    ),
    "arabic": ("ابتثجحخدذرزسشصضطظعغفقكلمنهويءآأؤإئةىًٌٍَُِّْ٠١٢٣٤٥٦٧٨٩", " ", "،؛؟."),
    "hebrew": ("אבגדהוזחטיכלמנסעפצקרשתךםןףץְִֵֶַָֹּ", " ", ".,?־"),
    "hindi": ("अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूृेैोौंःँ़्०१२३४५६७८९", " ", "।,?"),
    "bengali": ("অআইঈউঊএঐওঔকখগঘচছজঝটঠডঢণতথদধনপফবভমযরলশষসহািীুূেৈোৌ্ংঃঁ", " ", "।,?"),
    "tamil": ("அஆஇஈஉஊஎஏஐஒஓகஙசஞடணதநபமயரலவழளறனாிீுூெேைொோௌ்", " ", ".,?"),
    "thai": ("กขคฆงจฉชซญฐณดตถทธนบปผฝพฟภมยรลวศษสหอฮะาำิีึืุูเแโใไ็่้๊๋์๑๒๓", "", " "),
    "russian": ("абвгдеёжзийклмнопрстуфхцчшщъыьэюяАБВГДЕЁЖЗ", " ", ".,!?—«»"),
    "greek": ("αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊΐΑΒΓΔΩ", " ", ".,;·"),
    "vietnamese": ("aăâbcdđeêghiklmnoôơpqrstuưvxyàáảãạằắẳẵặầấẩẫậèéẻẽẹềếểễệ", " ", ".,!?"),
    "turkish": ("abcçdefgğhıijklmnoöprsştuüvyzİIĞŞ", " ", ".,!?"),
    "german": ("abcdefghijklmnopqrstuvwxyzäöüßÄÖÜẞ", " ", ".,!?„“"),
    "georgian": ("აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ", " ", ".,"),
    "ethiopic": ("ሀለሐመሠረሰሸቀበተቸኀነኘአከኸወዐዘዠየደጀገጠጨጰጸፀፈፐ", " ", "።፣"),
}
EMOJI = """
👍 😀 😃 🎉 🚀 ❤️ ☃️ ☃ 👨‍👩‍👧‍👦 👩🏽‍💻 🏳️‍🌈 🏴‍☠️ 🇩🇪 🇯🇵🇺🇸 👋🏿 1️⃣ #️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🧑‍🚀 🫠 🤷🏼‍♀️ ✅ ⌛︎ ©️ ™
🀄 🧑🏻‍🤝‍🧑🏿 👁️‍🗨️
""".split()
MARKS = [
    chr(c)
    for c in itertools.chain(
        range(0x300, 0x345),
        range(0x483, 0x488),
        range(0x591, 0x5A0),
        range(0x64B, 0x656),
        range(0x1AB0, 0x1AB8),
        range(0x20D0, 0x20DD),
        range(0x3099, 0x309B),
        range(0xFE20, 0xFE24),
    )
]
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\n\n",
    " \n",
    "\n ",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\u2028",
    "\v",
    "\f",
    "\u0085",
    "\u1680",
    "\u202f",
    "\u205f",
    "        ",
    "\t\t\t",
]
CONTROLS = [
    "\x01",
    "\x02",
    "\x07",
    "\x08",
    "\x0b",
    "\x0c",
    "\x1b[31m",
    "\x1f",
    "\x7f",
    "\x80",
    "\x9f",
    "\u200d",
    "\u200e",
    "\u202e",
    "\u2066",
    "\ufff9",
    "\ufffd",
    "\ufffe",
    "\uffff",
    "\U0010ffff",
    "\ue000",
]
SPECIALS = (
    """
<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|reserved_special_token_0|>
<|im_start|> <|im_end|> <|endoftext|> <|vision_start|> <tool_call> </tool_call> <think> </think> [CLS] [SEP]
[MASK] [PAD] [UNK] <s> </s> <unk> <pad> <bos> <|eot_id |im_start|> <|im_end| [CLS [mask] <|IM_START|>
""".split()
    + ["< |im_end|>"]
)
CODE = [
    'def {a}({b}, *args, **kwargs):\n    """{c}"""\n    return [{b} ** 2 for {b} in range({n}) if {b} % 2 == 0]\n',
    'package main\n\nimport "fmt"\n\nfunc main() {{\n\tfor {a} := range {n} {{\n\t\tfmt.Println("{b}", {a})\n\t}}\n}}\n',
    '{{"{a}": [1, 2, {{"{b}": null}}], "{c}": "\\u00e9\\n", "n": {n}.5e-3, "t": true}}',
    "SELECT {a}, COUNT(*) AS {b} FROM {c} WHERE id = {n} AND x <> 'it''s' GROUP BY 1; -- {a}\n",
    '<div class="{a} {b}" data-n={n}><!-- {c} --><p>&nbsp;&lt;{b}&gt;</p></div>\n',
    "fn {a}<T: Clone>({b}: &[T]) -> Option<&T> {{ {b}.get({n}).map(|x| x) }} // {c}\n",
    '#include <stdio.h>\nint main(void) {{ printf("%d\\n", {n}); /* {a} */ return {b}->{c}[0x{n:x}]; }}\n',
    "$ curl -s 'http://localhost:{n}/{a}?{b}={c}&x=%20' | jq '.[] | select(.{a} > 0)' >> {c}.log 2>&1\n",
    '{a}:\n  {b}:\n    - name: {c}\n      port: {n}\n      args: ["--{a}={b}"]\n\n',
    "import {{ {a} }} from './{b}';\nexport const {c} = async (x?: number) => await {a}(x ?? {n});\n",
    "^(?:[a-z]+\\d{{1,{n}}}|\\p{{L}}+)$ \\begin{{{a}}} $\\frac{{1}}{{{n}}} \\sum_{{i=0}}^n {b}_i$ \\end{{{a}}}\n",
    "diff --git a/{a}.go b/{b}.go\n@@ -1,{n} +1,7 @@\n-\told := {c}\n+\tnew := {c}\n",
]


class Maker:
    """Makes texts. Nothing but the seed decides what comes out."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def length(self, low, high):
        """A length between the two, short ones oftener."""
        return int(low * (high / low) ** self.r.random())

    def english(self, words):
        out = []
        for _ in range(words):
            word = self.r.choice(ENGLISH)
            if self.r.random() < 0.08:
                word = word.capitalize() if self.r.random() < 0.7 else word.upper()
            out.append(
                word
                + (
                    self.r.choice([".", ",", "?", "!", ":", ";", "...", " -", '"', ")"])
                    if self.r.random() < 0.12
                    else ""
                )
            )
        return " ".join(out)

    def script(self, name, chars):
        letters, joiner, stops = SCRIPTS[name]
        out = []
        while sum(map(len, out)) < chars:
            out.append("".join(self.r.choice(letters) for _ in range(self.r.randint(1, 8))))
            if self.r.random() < 0.2:
                out.append(self.r.choice(stops))
            out.append(joiner)
        return "".join(out)[:chars]

    def emoji(self, count):
        return "".join(self.r.choice(EMOJI) + self.r.choice(["", "", " ", "a", " ok ", "\u200d"]) for _ in range(count))

    def combining(self, count):
        """Letters with marks on them, composed and decomposed, marks on nothing, and piles of marks."""
        out = []
        for _ in range(count):
            base = self.r.choice("aeiouncszAEOyg가한のかनिกع ")
            text = base + "".join(self.r.choice(MARKS) for _ in range(self.r.choice([0, 1, 1, 1, 2, 3, 9])))
            out.append(
                self.r.choice(
                    [text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text), self.r.choice(MARKS)]
                )
            )
        return "".join(out)

    def code(self, pieces):
        out = []
        for _ in range(pieces):
            a, b, c = (
                self.r.choice(
                    ["x", "userId", "get_items", "HTTPServer", "foo", "i", "naïve", "データ", "cache-key", "__init__"]
                )
                for _ in range(3)
            )
            out.append(
                self.r.choice(CODE).format(a=a, b=b, c=c, n=self.r.choice([0, 1, 7, 42, 255, 1024, 8080, 65536]))
            )
        return "".join(out)

    def whitespace(self, count):
        return "".join(
            self.r.choice(SPACES) * self.r.choice([1, 1, 2, 7]) + self.r.choice(["", "", "x", "word", "."])
            for _ in range(count)
        )

    def numbers(self, count):
        r = self.r
        kinds = [
            lambda: str(r.randrange(10 ** r.randint(1, 20))),
            lambda: f"{r.uniform(-1e6, 1e6):.{r.randint(0, 9)}f}",
            lambda: f"{r.randrange(10**9):,}",
            lambda: f"{r.uniform(0, 1):e}",
            lambda: hex(r.randrange(2**32)),
            lambda: f"20{r.randint(10, 39)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}T{r.randint(0, 23):02}:00:00Z",
            lambda: r.choice("½¾²³①⑩Ⅷ٣५๔一二百"),
            lambda: f"${r.randint(1, 999)}.{r.randint(0, 99):02}",
            lambda: f"10.{r.randint(0, 255)}.0.{r.randint(0, 255)}:{r.randint(1, 65535)}",
            lambda: f"+49 {r.randint(100, 999)} {r.randint(1000, 9999)}",
            lambda: str(r.randint(0, 9)) * r.randint(1, 12),
        ]
        return r.choice(["", " ", ", ", "\n"]).join(r.choice(kinds)() for _ in range(count))

    def special(self, count):
        return "".join(
            self.r.choice(SPECIALS)
            + self.r.choice(["", " ", "\n", "user", "\n\nHi", "é", "👍", self.r.choice(SPECIALS)])
            for _ in range(count)
        )

    def unicode(self, count):
        out = []
        while len(out) < count:
            c = self.r.choice(
                [
                    self.r.randrange(1, 0x800),
                    self.r.randrange(0x800, 0x10000),
                    self.r.randrange(0x10000, 0x30000),
                    self.r.randrange(0x1, 0x110000),
                ]
            )
            if not 0xD800 <= c < 0xE000:  # no surrogates: UTF-8 has none
                out.append(chr(c))
        return "".join(out)

    def controls(self, count):
        return "".join(self.r.choice(CONTROLS) + self.r.choice(["", "a", " ", "日", "\n"]) for _ in range(count))

    def mixed(self, pieces):
        makers = [
            lambda: self.english(self.r.randint(1, 9)),
            lambda: self.script(self.r.choice(list(SCRIPTS)), self.r.randint(1, 20)),
            lambda: self.emoji(1),
            lambda: self.combining(3),
            lambda: self.whitespace(1),
            lambda: self.numbers(1),
            lambda: self.special(1),
            lambda: self.unicode(2),
            lambda: self.code(1),
            lambda: self.controls(1),
        ]
        return "".join(self.r.choice(makers)() + self.r.choice(["", "", " "]) for _ in range(pieces))

    def chat(self, style, turns):
        """A conversation in a chat template's shape, as growing prefixes: one text a turn."""
        open_, middle, close = {
            "llama3": ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
            "chatml": ("<|im_start|>", "\n", "<|im_end|>\n"),
            "plain": ("", ": ", "\n"),
        }[style]
        text = (
            {"llama3": "<|begin_of_text|>"}.get(style, "")
            + open_
            + "system"
            + middle
            + self.english(self.r.randint(10, 60))
            + close
        )
        for turn in range(turns):
            body = self.r.choice(
                [
                    lambda: self.english(self.r.randint(3, 50)),
                    lambda: self.script(self.r.choice(list(SCRIPTS)), self.r.randint(5, 60)),
                    lambda: self.code(1),
                    lambda: self.mixed(3),
                ]
            )()
            text += open_ + ("user", "assistant")[turn % 2] + middle + body + close
            yield text

    def repeated(self):
        piece = self.r.choice(
            [
                "a",
                "ab",
                "=",
                "-",
                "█",
                "中",
                "👍",
                " ",
                "\n",
                "\t",
                "é",
                "e\u0301",
                "0",
                "!?",
                "haha",
                "NaN",
                ".",
                "、",
                "्",
                "\u200d",
                "_",
                "lol ",
                "ⅷ",
                "\r\n",
            ]
        )
        return piece * self.length(2, 600)


def make_texts():
    """All texts, as (kind, text), without doubles, in the order of their ids."""
    m = Maker(SEED)
    seen = set()
    out = []

    def add(kind, text):
        text.encode()  # raises on surrogates
        if "\0" not in text and text not in seen:
            seen.add(text)
            out.append((kind, text))

    add("empty", "")
    counts = {
        "english": 180,
        "code": 130,
        "whitespace": 130,
        "numbers": 110,
        "special": 180,
        "emoji": 130,
        "combining": 150,
        "controls": 60,
        "unicode": 150,
        "mixed": 300,
        "repeated": 110,
    }
    counts |= {name: 22 for name in SCRIPTS} | {"chinese": 90, "arabic": 60, "hindi": 60}
    longest = {
        "code": 6,
        "mixed": 24,
        "numbers": 16,
        "special": 12,
        "controls": 16,
        "emoji": 24,
        "whitespace": 24,
        "combining": 60,
        "english": 160,
        "unicode": 160,
    }

    def one(kind, small):
        if kind in SCRIPTS:
            return m.script(kind, m.length(1, 24 if small else 320))
        if kind == "repeated":
            return m.repeated()[: 40 if small else None]
        return getattr(m, kind)(m.length(1, min(12, longest[kind]) if small else longest[kind]))

    # Three short ones of each kind come first: the first FULL texts are stored with all their tokens.
    for kind in counts:
        for _ in range(3):
            add(kind, one(kind, small=True))
    for kind, count in counts.items():
        for _ in range(count):
            add(kind, one(kind, small=False))
    for _ in range(26):
        for text in m.chat(m.r.choice(["llama3", "chatml", "plain"]), m.r.randint(3, 8)):
            add("chat", text)
    # The same text up to one place: what a prefix store may take from the one for the other.
    for _ in range(40):
        base = m.mixed(6) + m.english(20)
        at = m.r.randrange(len(base))
        add("neighbours", base)
        add("neighbours", base[:at])
        add("neighbours", base[:at] + m.r.choice(["x", " ", "é", "👍", "\u0301", "<|eot_id|>"]) + base[at:])
    for size in (4000, 9000, 20000, 40000, 60000):
        add("long", m.english(size // 6))
    for kind, size in (("chinese", 12000), ("arabic", 6000), ("hindi", 6000), ("russian", 8000), ("thai", 5000)):
        add("long", m.script(kind, size))
    for text in (
        m.code(120),
        m.mixed(250),
        m.combining(1500),
        m.emoji(700),
        m.numbers(600),
        m.special(400),
        m.unicode(2500),
        "a" * 20000,
        " " * 20000,
        "\n" * 5000,
        "中" * 8000,
        "ab " * 9000,
        "👍" * 4000,
        "e\u0301" * 6000,
        "0123456789" * 2000,
        "\t" * 9000 + "x",
        "x" + " \n" * 5000,
    ):
        add("long", text)
    return out


# --- files -------------------------------------------------------------------------------------------------------


def digest(numbers):
    """The first 8 bytes, in hex, of the SHA-256 of the numbers as u32 little-endian."""
    return hashlib.sha256(struct.pack(f"<{len(numbers)}I", *numbers)).hexdigest()[:16]


def ends_in_bytes(text, offsets):
    """End offsets in bytes of the text's UTF-8, from the reference's offsets in characters."""
    at = [0, *itertools.accumulate(len(c.encode()) for c in text)]
    return [at[end] for _, end in offsets]


def golden(tokenizer, text, special, full):
    encoding = tokenizer.encode(text, add_special_tokens=special)
    ends = ends_in_bytes(text, encoding.offsets)
    entry = {"n": len(encoding.ids), "ids": digest(encoding.ids), "ends": digest(ends)}
    if full:
        entry |= {"all_ids": encoding.ids, "all_ends": ends}
    return entry


def lines(entries):
    return "".join(json.dumps(e, ensure_ascii=False, separators=(",", ":")) + "\n" for e in entries).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the committed files differ")
    parser.add_argument(
        "--tokenizers",
        type=pathlib.Path,
        default=ROOT / ".cache" / "tokenizers",
        help="folder that scripts/fetch-tokenizers.sh has prepared",
    )
    args = parser.parse_args()
    library = import_tokenizers()

    texts = make_texts()
    print(f"goldens: {len(texts)} texts, {sum(len(t.encode()) for _, t in texts) // 1024} KiB", file=sys.stderr)
    files = {"texts.jsonl.gz": lines({"id": i, "kind": kind, "text": text} for i, (kind, text) in enumerate(texts))}
    manifest = {"library": f"tokenizers {LIBRARY}", "texts": len(texts), "full": FULL, "tokenizers": []}
    for number, (name, model) in enumerate(TOKENIZERS, 1):
        path = args.tokenizers / model / "tokenizer.json"
        if not path.exists():
            sys.exit(f"goldens: {path} is missing: run scripts/fetch-tokenizers.sh first")
        print(f"goldens: tokenizer {number} of {len(TOKENIZERS)}: {model}", file=sys.stderr)
        tokenizer = library.Tokenizer.from_file(str(path))
        if tokenizer.truncation or tokenizer.padding:
            sys.exit(f"goldens: {path} truncates or pads: not fit for goldens")
        files[f"{name}.jsonl.gz"] = lines(
            {
                "id": i,
                "plain": golden(tokenizer, text, False, i < FULL),
                "special": golden(tokenizer, text, True, i < FULL),
            }
            for i, (_, text) in enumerate(texts)
        )
        manifest["tokenizers"].append(
            {
                "name": name,
                "model": model,
                "file": f"{name}.jsonl.gz",
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
        )
    files["manifest.json"] = (json.dumps(manifest, indent=2) + "\n").encode()

    differs = False
    for name, data in files.items():
        path = OUT / name
        if args.check:
            # What is in them is compared: compressors of different versions write different bytes.
            have = path.read_bytes() if path.exists() else b""
            if (gzip.decompress(have) if have and name.endswith(".gz") else have) != data:
                print(f"goldens: testdata/tokens/{name} differs", file=sys.stderr)
                differs = True
            continue
        OUT.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, 9, mtime=0) if name.endswith(".gz") else data)
        print(f"goldens: wrote testdata/tokens/{name}, {path.stat().st_size // 1024} KiB", file=sys.stderr)
    if args.check and not differs:
        print("goldens: the committed files are what the reference library gives", file=sys.stderr)
    sys.exit(differs)


if __name__ == "__main__":
    main()
