"""Two trainings after one another, 50 and 30 steps. Arguments: hf or lightning, ranks, and with the callback its folder."""

import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
FRAMEWORK, RANKS, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


def hf():
    from transformers import PrinterCallback, Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(128, 128), nn.ReLU())])

        def forward(self, x):
            return {"loss": (self.layers(x) - x).square().mean()}

    data = [{"x": torch.randn(128, 128)} for _ in range(64)]
    callbacks = []
    if FOLDER:
        from stepscope.monitor.callbacks import trainer_callback

        callbacks = [trainer_callback(FOLDER[0])]
    for steps in (50, 30):
        with tempfile.TemporaryDirectory() as folder:
            options = TrainingArguments(
                folder, per_device_train_batch_size=8, max_steps=steps, use_cpu=True, report_to=[], save_strategy="no",
                logging_strategy="no", disable_tqdm=True,
            )  # fmt: skip
            trainer = Trainer(Model(), options, train_dataset=data, callbacks=callbacks)
            trainer.remove_callback(PrinterCallback)
            trainer.train()


def lightning():
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(128, 128), nn.ReLU())])

        def training_step(self, batch, _):
            return (self.layers(batch[0]) - batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = DataLoader(TensorDataset(torch.randn(1024, 128, 128)), batch_size=8)
    callbacks = []
    if FOLDER:
        from stepscope.monitor.callbacks import lightning_callback

        callbacks = [lightning_callback(FOLDER[0])]
    for steps in (50, 30):
        trainer = pl.Trainer(
            accelerator="cpu", devices=RANKS, strategy="ddp" if RANKS > 1 else "auto", max_steps=steps, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        )  # fmt: skip
        trainer.fit(Model(), data)


{"hf": hf, "lightning": lightning}[FRAMEWORK]()
