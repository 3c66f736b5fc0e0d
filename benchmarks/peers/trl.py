"""Times GRPO of TRL, Hugging Face's trainer in PyTorch, on addition; it runs offline, with a model made from nothing.

The model (GPT-2's form), the batch and the loss are those of the job `tokens_addition`. There is no warm start, so
rewards are 0 and only speed can be compared. An update takes seconds, so few are timed:

    pip install trl    # beside torch, in the environment of sbx
    python -m benchmarks.peers.trl tokens_addition --seed 0
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from importlib.metadata import version
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.peers.contract import Figures, Goal, Stopwatch, main

GROUP, GROUPS, LONGEST, WARMUP, UPDATES = 8, 32, 4, 3, 20
CHARACTERS = "0123456789+=."


class Clock(TrainerCallback):
    """Starts a stopwatch after the first updates."""

    def __init__(self, watch: Stopwatch):
        self.watch, self.begin = watch, time.perf_counter()

    def on_step_end(self, arguments: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == WARMUP:
            self.watch.start()
            self.first = time.perf_counter() - self.begin


def tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer of single characters."""
    vocabulary = {character: number for number, character in enumerate(["<pad>", *CHARACTERS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token=".")


def right(prompts: list[str], completions: list[str], **given: Any) -> list[float]:
    """Rewards: 1 for a right sum."""
    sums = [sum(map(int, prompt.rstrip("=").split("+"))) for prompt in prompts]
    return [float(text.strip(".") == str(number)) for text, number in zip(completions, sums, strict=True)]


def run(job: str, seed: int, goal: Goal | None = None) -> Figures:
    """Some updates, after those that warm up."""
    watch, draw, words = Stopwatch(), random.Random(seed), tokenizer()
    torch.manual_seed(seed)
    tokens = {
        "bos_token_id": words.eos_token_id,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    size = GPT2Config(vocab_size=len(words), n_positions=16, n_embd=64, n_layer=2, n_head=4, **tokens)
    prompts = [f"{draw.randrange(100)}+{draw.randrange(100)}=" for _ in range(GROUPS * (WARMUP + UPDATES))]
    with tempfile.TemporaryDirectory() as folder:
        options = GRPOConfig(
            folder, use_cpu=True, bf16=False, per_device_train_batch_size=GROUP * GROUPS, num_generations=GROUP,
            max_completion_length=LONGEST, learning_rate=3e-4, beta=0.0, max_steps=WARMUP + UPDATES, report_to=[],
            save_strategy="no", logging_strategy="no", seed=seed, disable_tqdm=True, gradient_checkpointing=False,
        )  # fmt: skip
        clock = Clock(watch)
        trainer = GRPOTrainer(GPT2LMHeadModel(size), right, options, Dataset.from_dict({"prompt": prompts}),
                              processing_class=words, callbacks=[clock])  # fmt: skip
        trainer.train()
        watch.stop()
    watch.compile_seconds = max(0.0, clock.first - WARMUP * watch.seconds / UPDATES)
    return watch.figures(UPDATES * GROUPS * GROUP * LONGEST, 0.0)


if __name__ == "__main__":
    main("trl", version("trl"), ["tokens_addition"], run)
