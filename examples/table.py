"""A CSV file: find the labels that are wrong, correct them, and see what a model gains by it."""

import pandas as pd
from sklearn.datasets import load_breast_cancer

from noiseproof.audit import audit, corrections, read_audit, read_rows, retrain, write_corrected

# A table with mistakes. With a file of your own, begin below, with its name and its column of labels.
cancer = load_breast_cancer(as_frame=True)
truth = cancer.target.map({0: "malignant", 1: "benign"})
other = truth.map({"malignant": "benign", "benign": "malignant"})
mistaken = pd.Series(range(len(truth))).sample(frac=0.15, random_state=0)
given = truth.where(~truth.index.isin(mistaken), other)
cancer.data.assign(diagnosis=given).to_csv("cells.csv", index=False)

# Audit. Nothing is changed: the folder gets a list of all rows, from the worst label to the best.
report = audit(read_rows("cells.csv", label="diagnosis"))
report.save("audit")
print(report.summary()["verdict"])
worst = report.table().head(5)
print(worst[["row", "given_label", "suggested_label", "label_quality"]].to_string(index=False))

# Decide. `noiseproof review audit/` is the page for it; here labels are corrected that are likelier wrong than right.
found = read_audit("audit")
changes = corrections(found, {}, accept_all=True)

# Correct. A new file, equal to the old one in every byte but those of the changed labels.
path = write_corrected(found, changes, "corrected.csv")
mended = pd.read_csv(path)["diagnosis"]
print(f"wrong labels: {(given != truth).sum()} before, {(mended != truth).sum()} after")

# Compare. Cross entropy, long enough to learn mistakes by heart, on both; judged on rows that neither saw. Mind the
# warning: those labels are no truth either, unless you name some that are (`trusted`).
result = retrain(found, changes, {}, method="ce", epochs=100)
print(f"accuracy: {result.before:.3f} before, {result.after:.3f} after")
print(f"warning: {result.warning}")
