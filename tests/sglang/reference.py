"""Log-probabilities of the next token by `transformers`, for comparison.

Runs in the virtual environment that has torch, as a program: it shares nothing with SGLang but the
checkpoint, and evaluates every prompt whole, in one uncached pass in float32.

`reference.py CHECKPOINT < PROMPTS > ANSWERS`: a JSON array of prompts, each an array of token ids;
one array of log-probabilities over the whole vocabulary comes back for each.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
with torch.inference_mode():
    answers = [
        torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), 0).tolist()
        for ids in json.load(sys.stdin)
    ]
json.dump(answers, sys.stdout)
