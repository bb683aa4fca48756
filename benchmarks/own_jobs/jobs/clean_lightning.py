"""Lightning, DDP, 2 ranks; nothing is planted."""

import lightning.pytorch as pl
import torch
from _clock import tick
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(128, 128), nn.ReLU())])

    def training_step(self, batch, _):
        (inputs,) = batch
        return (self.layers(inputs) - inputs).square().mean()

    def on_train_batch_end(self, *_):
        tick()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    pl.seed_everything(0, verbose=False)
    data = DataLoader(TensorDataset(torch.randn(16 * 40, 128, 128)), batch_size=16)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=12, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Net(), data)
    if trainer.is_global_zero:
        print(f"steps {trainer.global_step}")


if __name__ == "__main__":
    main()
