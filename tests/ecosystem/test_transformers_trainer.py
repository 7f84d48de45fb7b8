"""The Trainer of transformers with a compiled model, compared with eager mode."""

import os

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.ecosystem import tiny_models
from tests.ecosystem.side_by_side import assert_as_eager

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.full


class Sentences(torch.utils.data.Dataset):
    """Encoded sentences of one length, and labels."""

    def __init__(self, size=24):
        tokens = tiny_models.tokenizer()(
            [tiny_models.SENTENCES[i % 6] for i in range(size)],
            padding="max_length",
            max_length=12,
            return_tensors="pt",
        )
        self.items = [
            {
                "input_ids": tokens["input_ids"][i],
                "attention_mask": tokens["attention_mask"][i],
                "labels": torch.tensor(i % 3),
            }
            for i in range(size)
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def arguments(folder, **settings):
    defaults = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": 5,
        "learning_rate": 1e-2,
        "adam_epsilon": 1e-3,  # keeps Adam from scaling up gradients that are zero but for rounding
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 7,
    }
    return transformers.TrainingArguments(output_dir=str(folder), **(defaults | settings))


def losses(trainer):
    keys = ("loss", "grad_norm", "eval_loss", "eval_accuracy", "learning_rate")
    return [{k: entry[k] for k in keys if k in entry} for entry in trainer.state.log_history]


def accuracy(predictions):
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def trainer(model, folder, **settings):
    return transformers.Trainer(
        model=model,
        args=arguments(folder, **settings),
        train_dataset=Sentences(),
        eval_dataset=Sentences(8),
        compute_metrics=accuracy,
    )


SETTINGS = {
    "plain": {},
    "bf16": {"bf16": True},
    "accumulation": {"gradient_accumulation_steps": 2, "max_steps": 3},
    "clipping": {"max_grad_norm": 0.1, "weight_decay": 0.1, "lr_scheduler_type": "cosine"},
    "gradient-checkpointing": {"gradient_checkpointing": True},
}
TOLERANCES = {"bf16": {"rtol": 2e-2, "atol": 2e-2}}


@pytest.mark.parametrize("name", SETTINGS)
def test_trains_and_evaluates_as_in_eager_mode(name, tmp_path):
    def program(wrap):
        model = tiny_models.classifier()
        run = trainer(wrap(model), tmp_path, **SETTINGS[name])
        run.train()
        metrics = run.evaluate()
        predicted = run.predict(Sentences(8)).predictions
        return losses(run), metrics["eval_loss"], predicted, model.state_dict()

    tolerances = TOLERANCES.get(name, {"rtol": 1e-4, "atol": 1e-5})
    assert_as_eager(program, hits=3, **tolerances)


def test_a_checkpoint_resumes_and_has_the_keys_of_the_original(tmp_path):
    def program(wrap):
        folder = tmp_path / wrap.__name__.strip("<>")
        saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
        first = trainer(wrap(tiny_models.classifier()), folder, **saving)
        first.train()
        model = tiny_models.classifier()
        second = trainer(wrap(model), folder, max_steps=6)
        second.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
        second.save_model(str(folder / "final"))
        loaded = transformers.BertForSequenceClassification.from_pretrained(folder / "final")
        return losses(first), losses(second), model.state_dict(), loaded.state_dict()

    assert_as_eager(program, rtol=1e-4, atol=1e-5)


def test_a_model_that_the_trainer_makes_is_compiled_where_it_is_made(tmp_path):
    """By ``model_init``: at each ``train``, also where it resumes."""

    def program(wrap):
        made = []

        def make():
            made.append(tiny_models.classifier())
            return wrap(made[-1])

        folder = tmp_path / wrap.__name__.strip("<>")

        def run(**settings):
            return transformers.Trainer(
                model_init=make,
                args=arguments(folder, **settings),
                train_dataset=Sentences(),
                eval_dataset=Sentences(8),
                compute_metrics=accuracy,
            )

        first = run(save_strategy="steps", save_steps=3, max_steps=6)
        first.train()
        evaluated = first.evaluate()["eval_loss"]
        second = run(max_steps=6)
        second.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
        second.save_model(str(folder / "final"))
        loaded = transformers.BertForSequenceClassification.from_pretrained(folder / "final")
        assert second.accelerator.unwrap_model(second.model) is second.model
        states = [model.state_dict() for model in (made[1], made[3], loaded)]
        return losses(first), evaluated, losses(second), states, len(made)

    # Each trainer makes a model that it does not call.
    assert_as_eager(program, hits=0, rtol=1e-4, atol=1e-5)


def test_each_training_compiles_the_model_that_it_makes(tmp_path):
    """As the trials of a search for hyper-parameters do."""
    models = []

    def make(trial):
        models.append(magpy.compile(tiny_models.classifier()))
        return models[-1]

    run = transformers.Trainer(model_init=make, args=arguments(tmp_path), train_dataset=Sentences())
    for _ in range(2):
        run.train()
    assert run.model is models[2]
    assert all(magpy.cache_info(model).hits >= 3 for model in models[1:])


def test_a_model_that_is_compiled_in_place_trains(tmp_path):
    """By Dynamo's capture, as ``torch_compile=True`` would."""
    states = []
    for in_place in (False, True):
        model = tiny_models.classifier(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
        if in_place:
            model.compile(backend="magpy")
        run = trainer(model, tmp_path)
        run.train()
        states.append((losses(run), model.state_dict()))
    assert_same(*states, rtol=1e-4, atol=1e-5)


def test_the_switch_of_the_trainer_refuses_the_backend(tmp_path, monkeypatch):
    """So that the guide's table is right."""
    monkeypatch.setattr(os, "environ", os.environ.copy())  # the switch sets variables
    with pytest.raises(ValueError, match="(?i)magpy"):
        trainer(tiny_models.classifier(), tmp_path, torch_compile_backend="magpy")


def test_a_language_model_trains_on_batches_of_varying_lengths(tmp_path):
    def program(wrap):
        tokenizer = tiny_models.tokenizer()
        model = tiny_models.llama()
        run = transformers.Trainer(
            model=wrap(model),
            args=arguments(tmp_path, max_steps=8, per_device_train_batch_size=2),
            train_dataset=[tokenizer(s) for s in tiny_models.SENTENCES * 3],
            data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        run.train()
        return losses(run), model.state_dict()

    assert_as_eager(program, hits=2, rtol=1e-3, atol=1e-4)
