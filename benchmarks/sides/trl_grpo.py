"""TRL's side: GRPOTrainer as it is shipped, with transformers' generation, settings as Cohort's side. Runs in
.venv-bench.

    trl_grpo.py FOLDER STEPS     (FOLDER: model/ and work.json; so many steps are measured after one to warm up)

The last line printed is JSON, a figure for each measured step: seconds, of them generation (with what scores and
prepares), tokens, mean reward.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import work
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
job = work.Work.load(folder)
seconds: list[float] = []
sampling: list[float] = []
tokens: list[int] = []
rewards: list[float] = []
spent = drawn = 0.0


def reward(prompts, completions, completion_ids, answer, **_):  # type: ignore[no-untyped-def]
    tokens.append(sum(len(ids) for ids in completion_ids))
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    given = zip(texts, prompts, answer, strict=True)
    paid = [work.reward(text, prompt, right, job.task) for text, prompt, right in given]
    rewards.append(sum(paid) / len(paid))
    return paid


class Timed(GRPOTrainer):
    """GRPOTrainer with a clock around its generation."""

    def _generate(self, *given, **named):  # type: ignore[no-untyped-def]
        global spent
        began = time.perf_counter()
        try:
            return super()._generate(*given, **named)
        finally:
            spent += time.perf_counter() - began


class Clock(TrainerCallback):
    began = 0.0

    def on_step_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        global spent
        spent, Clock.began = 0.0, time.perf_counter()

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        if job.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - Clock.began)
        sampling.append(spent)
        print(f"step {len(seconds)}: {seconds[-1]:.1f} s, generation {spent:.1f} s", file=sys.stderr, flush=True)


torch.set_num_threads(job.threads)
batch = job.micro_batch or job.completions
with tempfile.TemporaryDirectory() as out:
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=getattr(torch, job.dtype)),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(work.problems_of(job, folder, steps + 1)),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=job.completions // batch,
            num_generations=job.group_size,
            max_completion_length=job.max_tokens,
            learning_rate=job.learning_rate,
            lr_scheduler_type="constant",
            max_steps=steps + 1,
            beta=job.beta,
            epsilon_high=job.clip_high,
            seed=job.seed + 1,
            temperature=1.0,
            shuffle_dataset=False,
            gradient_checkpointing=False,
            bf16=job.dtype == "bfloat16",
            use_cpu=job.device == "cpu",
            report_to=[],
            save_strategy="no",
            logging_steps=1000,
            disable_tqdm=True,
        ),
    )
    trainer.train()
told = {
    "seconds": seconds[1:],
    "sample": sampling[1:],
    "update": [whole - part for whole, part in zip(seconds[1:], sampling[1:], strict=True)],
    "tokens": tokens[1:],
    "reward": rewards[1:],
    "first_reward": rewards[0],
    "peak_rss_gb": work.peak_rss_gb(),
    "peak_device_gb": torch.cuda.max_memory_allocated() / 2**30 if job.device == "cuda" else 0.0,
}
print(json.dumps(told))
