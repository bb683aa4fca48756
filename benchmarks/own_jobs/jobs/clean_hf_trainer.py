"""HF Trainer, 2 ranks, a tiny Llama with random weights; nothing is planted."""

import tempfile

import torch
from _clock import tick
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * 2 * 200

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 512, (128,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class Clock(TrainerCallback):
    def on_step_end(self, *_, **__):
        tick()


def main():
    torch.manual_seed(0)
    sizes = LlamaConfig(
        hidden_size=96, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=512
    )  # fmt: skip
    model = LlamaForCausalLM(sizes)
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, per_device_train_batch_size=4, max_steps=200, use_cpu=True, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, seed=0, dataloader_num_workers=0,
        )  # fmt: skip
        trainer = Trainer(model, options, train_dataset=Tokens(), callbacks=[Clock()])
        trainer.remove_callback(PrinterCallback)
        done = trainer.train()
    if trainer.is_world_process_zero():
        print(f"steps {done.global_step}, loss {done.training_loss:.3f}")


if __name__ == "__main__":
    main()
