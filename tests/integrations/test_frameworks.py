"""Recipes with Lightning, transformers and skorch, runs in MLflow and Weights & Biases, models of
other packages.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_label_tools import ROOT, run_with

pytestmark = pytest.mark.integration
RECIPES = re.findall(
    r"^```py\n(.*?)^```",
    (ROOT / "docs" / "recipes.md").read_text("utf-8"),
    re.DOTALL | re.MULTILINE,
)
DATA = """
import json, math, os, sys
import numpy as np, torch
torch.manual_seed(0)
x = torch.randn(400, 4)
y = (x[:, 0] > 0).long()
given = torch.where(torch.rand(400) < 0.2, 1 - y, y)
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
"""
TRAIN = """
from pathlib import Path
from lightning_fabric import Fabric
from noiseproof.data import get_dataset
from noiseproof.train import Settings, prepare, train
from noiseproof.train.logs import describe, make_loggers
def two_trainings(name):
    task = prepare(get_dataset("digits"))
    for seed in range(2):
        loggers = make_loggers([name], Path("logs"))
        describe(loggers, {"seed": seed})
        train(task, "ce", Settings(model="mlp:hidden=[4]", epochs=2), seed=seed, fabric=Fabric(
            accelerator="cpu", devices=1, loggers=loggers))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(script: str, *recipes: int) -> Any:
    return run_with("frameworks", "\n".join([*(RECIPES[i] for i in recipes), script]))


def test_lightning() -> None:
    right = run(
        DATA
        + """
module = Robust(make(), alpha=0.9)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, given), 40, shuffle=True)
L.Trainer(
    max_epochs=20,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    accelerator="cpu",
).fit(module, loader, loader)
print(
    json.dumps(
        [float((net(x).argmax(1) == y).float().mean()) for net in (module.network, module.average)]
    )
)
""",
        0,
    )
    assert min(right) > 0.9  # of the true labels, where 20 % of the given ones are wrong


def test_hugging_face_trainer() -> None:
    right = run(
        DATA
        + """
from transformers import TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make()
    def forward(self, x, labels=None):
        return {"logits": self.net(x)}
rows = [{"x": a, "labels": b} for a, b in zip(x, given)]
model = Model()
arguments = TrainingArguments(
    "out",
    num_train_epochs=20,
    per_device_train_batch_size=20,
    gradient_accumulation_steps=2,
    learning_rate=0.01,
    report_to=[],
    use_cpu=True,
    save_strategy="no",
    label_names=["labels"],
    disable_tqdm=True,
    remove_unused_columns=False,
)
trainer = make_trainer(model, arguments, rows)
import copy
average = copy.deepcopy(model).requires_grad_(False)
trainer.add_callback(MomentumModel(average, alpha=0.9))
trainer.train()
print(json.dumps([float((m(x)["logits"].argmax(1) == y).float().mean()) for m in (model, average)]))
""",
        1,
        2,
    )
    assert min(right) > 0.9


def test_skorch() -> None:
    right, sums, plain = run(
        DATA
        + """
from sklearn.model_selection import cross_val_predict
options = dict(max_epochs=20, lr=0.1, verbose=0, batch_size=40)
p = cross_val_predict(
    make_classifier(make(), **options), x.numpy(), given.numpy(), method="predict_proba", cv=3
)
wrong = NeuralNetClassifier(make(), criterion=partial(get_loss, "gce:q=0.7"), **options).fit(
    x.numpy(), given.numpy()
)
print(
    json.dumps(
        [
            float((p.argmax(1) == y.numpy()).mean()),
            [float(p.sum(1).min()), float(p.sum(1).max())],
            float(wrong.predict_proba(x.numpy()).min()),
        ]
    )
)
""",
        3,
    )
    assert right > 0.9 and sums == pytest.approx([1, 1], abs=1e-5)
    assert plain < 0  # logits: what the recipe is for


def test_mlflow_keeps_two_trainings_apart() -> None:
    runs = run(
        TRAIN
        + """
import json, mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
two_trainings("mlflow")
with mlflow.start_run() as parent:
    two_trainings("mlflow")
    mlflow.log_metric("own", 1.0)
found = mlflow.MlflowClient().search_runs(["0"])
print(
    json.dumps(
        [
            [
                r.data.params.get("seed"),
                r.info.status,
                "mlflow.parentRunId" in r.data.tags,
                [
                    m.step
                    for m in mlflow.MlflowClient().get_metric_history(r.info.run_id, "train_loss")
                ],
            ]
            for r in found
            if "seed" in r.data.params
        ]
    )
)
"""
    )
    expected = [
        [str(seed), "FINISHED", nested, [1, 2]] for nested in (False, True) for seed in range(2)
    ]
    assert sorted(runs, key=str) == sorted(expected, key=str)


def test_wandb_keeps_two_trainings_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert (
        run(
            TRAIN
            + """
import json, wandb
mine = wandb.init(dir="logs")
two_trainings("wandb")
assert wandb.run is mine
mine.finish()
print(json.dumps(len(list(Path("logs/wandb").glob("offline-run-*")))))
"""
        )
        == 3
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mlflow",
            "Expected to log to mlflow, got MlflowException: API request to http://127.0.0.1:9/",
        ),
        (
            "wandb",
            (
                "Expected to log to wandb, got UsageError: No API key configured. Use `wandb login`"
                " to log in. Run"
            ),
        ),
    ],
)
def test_what_cannot_be_reached_is_said_in_one_line(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    code, error = run(f"""
import json, subprocess, sys
options = ["--dataset", "digits", "--epochs", "1", "--log", {name!r}]
command = [sys.executable, "-m", "noiseproof", "train", *options]
done = subprocess.run(command, capture_output=True, text=True)
print(json.dumps([done.returncode, done.stderr]))
""")
    assert code == 2 and "Traceback" not in error
    assert sum(message in line for line in error.splitlines()) == 1, json.dumps(error)


@pytest.mark.parametrize("model", ["lightgbm", "xgboost", "catboost"])
def test_an_audit_by_the_trees_of_another_package(model: str) -> None:
    found = run(f"""
import json
import numpy as np, pandas as pd
from noiseproof.audit import audit
random = np.random.default_rng(0)
city, x = random.integers(0, 5, 600), random.normal(size=600)
wrong = random.random(600) < 0.1
y = (x + 2 * (city == 2) > 0.5) ^ wrong
x[random.random(600) < 0.05] = np.nan
frame = pd.DataFrame({{"x": x, "city": [f"city {{i}}" for i in city], "y": y.astype(int)}})
report = audit(frame, label="y", model={model!r})
is_issue = np.zeros(600, bool)
is_issue[report.data.row] = report.label_issues.is_issue
names = [m["name"] for m in report.summary()["models"]]
print(json.dumps([names, int((is_issue & wrong).sum()), int(is_issue.sum()), int(wrong.sum())]))
""")
    names, right, called, wrong = found
    assert sorted(names) == sorted([model, "neighbours"])
    assert right > 0.8 * wrong and right > 0.8 * called


def test_features_of_sentence_transformers_are_its_own() -> None:
    difference, shape, version = run("""
import json, os
os.environ["HF_HUB_OFFLINE"] = "1"
from pathlib import Path
import sentence_transformers, transformers
from sentence_transformers.models import Pooling, Transformer
from noiseproof.data.text import encode_texts
Path("vocab.txt").write_text(
    "\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat"])
)
transformers.BertTokenizerFast("vocab.txt").save_pretrained("bert")
size = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
transformers.BertModel(transformers.BertConfig(vocab_size=9, **size)).save_pretrained("bert")
model = sentence_transformers.SentenceTransformer(modules=[Transformer("bert"), Pooling(12)])
model.save("sentences")
texts = ["the cat sat", "dog", "the the dog sat"]
x, about = encode_texts(texts, "sentence-transformers:sentences")
print(
    json.dumps(
        [float(abs(x - model.encode(texts)).max()), list(x.shape), about["weights"]["version"]]
    )
)
""")
    assert difference < 1e-6 and shape == [3, 12] and version
