"""Lightning's Trainer with a compiled ``LightningModule``: fit, validate, test, predict, resume."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.ecosystem.side_by_side import assert_as_eager, assert_same_runs

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.full


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)
        )
        self.seen = []

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, batch_index):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_index):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self(x), y))

    test_step = validation_step

    def predict_step(self, batch, batch_index):
        return self(batch[0])

    def on_train_batch_end(self, outputs, batch, batch_index):
        self.seen.append(outputs["loss"].detach().clone())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01, eps=1e-3)


class ByHand(Regression):
    """Manual optimization."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.manual_backward(loss)
        optimizer.step()
        return loss


def batches(size=24):
    data = torch.utils.data.TensorDataset(torch.randn(size, 6), torch.randn(size))
    return torch.utils.data.DataLoader(data, batch_size=4)


def trainer(folder, **settings):
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 2,
        "log_every_n_steps": 1,
        "default_root_dir": str(folder),
    }
    return lightning.Trainer(**(defaults | settings))


SETTINGS = {
    "plain": {},
    "accumulation": {"accumulate_grad_batches": 2},
    "bf16": {"precision": "bf16-mixed"},
    "clipping": {"gradient_clip_val": 0.1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_fits_and_validates_as_in_eager_mode(name, tmp_path):
    def program(wrap):
        model = Regression()
        run = trainer(tmp_path, **SETTINGS[name])
        fitted = wrap(model)
        run.fit(fitted, batches(), batches(8))
        metrics = {k: v.clone() for k, v in run.callback_metrics.items()}
        validated = run.validate(fitted, batches(8), verbose=False)
        tested = run.test(fitted, batches(8), verbose=False)
        predicted = run.predict(fitted, batches(8))
        return model.seen, metrics, validated, tested, predicted, model.state_dict()

    tolerances = {"rtol": 2e-2, "atol": 2e-2} if name == "bf16" else {"rtol": 1e-4, "atol": 1e-5}
    assert_as_eager(program, hits=5, **tolerances)


def test_manual_optimization_runs_as_in_eager_mode(tmp_path):
    def program(wrap):
        model = ByHand()
        trainer(tmp_path).fit(wrap(model), batches())
        return model.seen, model.state_dict()

    assert_as_eager(program, hits=3, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_resumes_and_loads(tmp_path):
    def program(wrap):
        folder = tmp_path / wrap.__name__.strip("<>")
        first = trainer(folder, max_epochs=1)
        first.fit(wrap(Regression()), batches())
        first.save_checkpoint(folder / "one.ckpt")
        model = Regression()
        trainer(folder, max_epochs=2).fit(wrap(model), batches(), ckpt_path=folder / "one.ckpt")
        loaded = Regression.load_from_checkpoint(folder / "one.ckpt", weights_only=False)
        return model.seen, model.state_dict(), loaded.state_dict()

    assert_as_eager(program, hits=2, rtol=1e-4, atol=1e-5)


def test_callbacks_and_early_stopping_see_the_original_class(tmp_path):
    class Names(lightning.Callback):
        def __init__(self):
            self.found = []

        def on_train_start(self, trainer, pl_module):
            self.found.append((isinstance(pl_module, Regression), pl_module.__class__.__name__))

    def program(wrap):
        names = Names()
        stop = lightning.pytorch.callbacks.EarlyStopping("val_loss", patience=1)
        run = trainer(tmp_path, callbacks=[names, stop], max_epochs=4)
        run.fit(wrap(Regression()), batches(), batches(8))
        return names.found, run.current_epoch

    assert_as_eager(program, hits=5)


class Unlogged(Regression):
    def training_step(self, batch, batch_index):
        return nn.functional.mse_loss(self(batch[0]), batch[1])


def test_a_training_step_is_one_program(tmp_path):
    model = magpy.compile(Unlogged())
    trainer(tmp_path, max_epochs=1).fit(model, batches())
    assert magpy.cache_info(model.training_step).hits >= 3


def test_a_training_step_that_logs_is_one_program(tmp_path):
    model = magpy.compile(Regression())
    trainer(tmp_path, max_epochs=1).fit(model, batches())
    assert magpy.cache_info(model.training_step).hits >= 3


# --- a trainer whose callback compiles the module -------------------------------------------------


def callback(**settings):
    from magpy_like.integrations.lightning import MagpyCallback

    return MagpyCallback(**settings)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_callback_compiles_the_module_of_a_trainer(name, tmp_path):
    infos = []

    def program(callbacks):
        model = Regression()
        run = trainer(tmp_path, callbacks=callbacks, **SETTINGS[name])
        run.fit(model, batches(), batches(8))
        metrics = {k: v.clone() for k, v in run.callback_metrics.items()}
        validated = run.validate(model, batches(8), verbose=False)
        tested = run.test(run.lightning_module, batches(8), verbose=False)
        predicted = run.predict(model, batches(8))
        used = run.lightning_module
        if callbacks:
            infos.append(magpy.cache_info(used))
        names = type(used.net).__name__, isinstance(used, Regression), list(used.state_dict())
        return model.seen, metrics, validated, tested, predicted, model.state_dict(), names

    tolerances = {"rtol": 2e-2, "atol": 2e-2} if name == "bf16" else {"rtol": 1e-4, "atol": 1e-5}
    assert_same_runs(program, [], [callback()], **tolerances)
    assert infos[0].hits >= 5


def test_a_checkpoint_of_a_trainer_with_the_callback_resumes_and_loads(tmp_path):
    def program(callbacks):
        folder = tmp_path / str(len(callbacks))
        saving = lightning.pytorch.callbacks.ModelCheckpoint(folder, "one", save_last=True)
        first = trainer(folder, max_epochs=1, callbacks=[*callbacks, saving],
                        enable_checkpointing=True)  # fmt: skip
        first.fit(Regression(), batches())
        best = first.test(
            ckpt_path="best", dataloaders=batches(8), verbose=False, weights_only=False
        )
        model = Regression()
        second = trainer(folder, max_epochs=2, callbacks=callbacks)
        second.fit(model, batches(), ckpt_path=folder / "last.ckpt", weights_only=False)
        loaded = Regression.load_from_checkpoint(folder / "last.ckpt", weights_only=False)
        saved = torch.load(folder / "last.ckpt", weights_only=False)
        return best, model.seen, model.state_dict(), loaded.state_dict(), sorted(saved["callbacks"])

    assert_same_runs(program, [], [callback()], rtol=1e-4, atol=1e-5)


def test_the_callback_keeps_its_records_for_later_runs_of_a_module(tmp_path):
    model, run = Regression(), trainer(tmp_path, callbacks=[callback()])
    run.predict(model, batches(8))
    used = run.lightning_module
    hits = magpy.cache_info(used).hits
    for given in (model, used, model):
        run.predict(given, batches(8))
        assert run.lightning_module is used
    assert magpy.cache_info(used).hits > hits
    run.predict(other := Regression(), batches(8))
    assert run.lightning_module._orig_mod is other


def test_the_callback_has_the_settings_of_compile(tmp_path):
    run = trainer(tmp_path, callbacks=[callback(backend="eager", dynamic=True)])
    run.predict(Regression(), batches(8))
    assert run.lightning_module._magpy.backend == "eager"
    assert run.lightning_module._magpy.dynamic is True


def test_a_configuration_file_names_the_callback(tmp_path):
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    file = tmp_path / "config.yaml"
    file.write_text(
        """
        trainer:
          callbacks:
            - class_path: magpy_like.integrations.lightning.MagpyCallback
              init_args: {dynamic: true}
          accelerator: cpu
          logger: false
          enable_progress_bar: false
        """
    )
    cli = LightningCLI(
        Regression, args=["--config", str(file)], run=False, save_config_callback=None
    )
    cli.trainer.predict(cli.model, batches(8))
    assert magpy.cache_info(cli.trainer.lightning_module).hits
    assert cli.trainer.lightning_module._magpy.dynamic is True


def test_the_callback_says_that_lightning_is_missing():
    program = """
import sys
sys.modules["lightning.pytorch"] = sys.modules["pytorch_lightning"] = None
import magpy_like.integrations.lightning
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "needs Lightning" in run.stderr and "pip install lightning" in run.stderr
