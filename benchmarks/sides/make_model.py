"""The benchmark's model: random weights, Cohort's byte-level tokenizer, in a folder that both sides load."""

import sys

from grpo_core.model.tiny import TinyShape, make_tiny

model, tokenizer = make_tiny(seed=0, shape=TinyShape(hidden=128, layers=4, heads=4, feed_forward=384))
model.save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
