"""TRL's side: GRPOTrainer with transformers' generation, settings as Cohort's side. Runs in .venv-bench."""

import json
import resource
import sys
import tempfile
import time

import work
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

folder, steps = sys.argv[1], int(sys.argv[2])
seconds: list[float] = []
tokens: list[int] = []
drawn: list[int] = []


def reward(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
    drawn.append(sum(len(ids) for ids in completion_ids))
    return [work.reward(completion) for completion in completions]


class Clock(TrainerCallback):
    began = 0.0

    def on_step_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        Clock.began = time.perf_counter()

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        if state.global_step >= 1:  # the first one warms up
            seconds.append(time.perf_counter() - Clock.began)
            tokens.append(drawn[-1])


with tempfile.TemporaryDirectory() as out:
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": work.prompts()}),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=work.PROMPTS_PER_STEP * work.GROUP_SIZE,
            gradient_accumulation_steps=1,
            num_generations=work.GROUP_SIZE,
            max_completion_length=work.MAX_TOKENS,
            learning_rate=work.LEARNING_RATE,
            lr_scheduler_type="constant",
            max_steps=steps + 1,
            beta=0.0,
            temperature=1.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1000,
            disable_tqdm=True,
        ),
    )
    began = time.perf_counter()
    trainer.train()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"seconds": seconds[1:], "tokens": tokens[1:], "peak_rss_gb": peak}))
