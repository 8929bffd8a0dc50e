#!/usr/bin/env python3
"""Make route/testdata/llm_d.json: llm-d's weighted choice on random fleets.

The formula is the one that llm-d's inference scheduler documents for its default profile: each
scorer gives each endpoint a number in [0, 1], the numbers are multiplied by the scorers' weights
and added, and the endpoint with the highest sum is picked.

  prefix-cache-scorer          blocks of the prompt that the endpoint holds / blocks of the prompt
  kv-cache-utilization-scorer  1 - the share of the cache that is in use
  queue-scorer                 (longest - own) / (longest - shortest); 1 for all if they are equal

It is computed here with fractions, so that no rounding decides. Needs Python 3 and nothing else.
"""
import json
import random
from fractions import Fraction as F
from pathlib import Path

rng = random.Random(20251129)
cases = []
for n in range(300):
    weights = rng.choice([(2, 1, 1), (3, 2, 2), (1, 1, 1), (0, 1, 3)])
    size = rng.choice([16, 64])
    blocks = rng.randint(1, 200)
    fleet = []
    for _ in range(rng.randint(1, 9)):
        capacity = rng.choice([0, 1000, 5000])
        fleet.append({
            "held_blocks": rng.choice([0, 0, blocks, rng.randint(0, blocks)]),
            "capacity_blocks": capacity,
            "used_blocks": rng.randint(0, 6000),
            "requests": rng.choice([0, 3, rng.randint(0, 50)]),
        })
    queues = [e["requests"] for e in fleet]
    low, high = min(queues), max(queues)
    scores = []
    for e in fleet:
        prefix = F(e["held_blocks"], blocks)
        kv = 1 - min(F(1), F(e["used_blocks"], e["capacity_blocks"])) if e["capacity_blocks"] else F(1)
        queue = F(high - e["requests"], high - low) if high > low else F(1)
        scores.append(weights[0] * prefix + weights[1] * kv + weights[2] * queue)
    best = max(scores)
    cases.append({
        "weights": weights, "block_size": size, "blocks": blocks, "fleet": fleet,
        "scores": [float(s) for s in scores],
        "best": [i for i, s in enumerate(scores) if s == best],
    })
out = Path(__file__).resolve().parent.parent / "route/testdata/llm_d.json"
out.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
