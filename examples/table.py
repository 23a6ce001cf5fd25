"""A CSV file: find the wrong labels, correct them, and measure what a model gains."""

import pandas as pd
from sklearn.datasets import load_breast_cancer

from noiseproof.audit import audit, corrections, plan_retraining, read_audit, read_rows, write_corrected

# A table with errors. With your own file, start below, with its name and its label column.
cancer = load_breast_cancer(as_frame=True)
truth = cancer.target.map({0: "malignant", 1: "benign"})
other = truth.map({"malignant": "benign", "benign": "malignant"})
errors = pd.Series(range(len(truth))).sample(frac=0.15, random_state=0)
given = truth.where(~truth.index.isin(errors), other)
cancer.data.assign(diagnosis=given).to_csv("cells.csv", index=False)

# Audit. Nothing is changed: the folder gets a list of all rows, worst label first.
report = audit(read_rows("cells.csv", label="diagnosis"))
report.save("audit")
print(report.summary()["verdict"])
worst = report.table().head(5)
print(worst[["row", "given_label", "suggested_label", "label_quality"]].to_string(index=False))

# Decide. `noiseproof review audit/` is the page for it; here, all labels that are more likely wrong are corrected.
# Nobody measured what that does (`noiseproof review audit/ --measure 50`), so that `yes` is needed.
audited = read_audit("audit")
changes = corrections(audited, {}, accept_all=True, yes=True)

# Correct. A new file that differs from the old one only in the changed labels.
path = write_corrected(audited, changes, "corrected.csv")
corrected_labels = pd.read_csv(path)["diagnosis"]
print(f"wrong labels: {(given != truth).sum()} before, {(corrected_labels != truth).sum()} after")

# Compare. Cross entropy, trained long enough to memorise errors, on both; evaluated on rows held out from both.
# Mind the warning: the labels of those rows may be wrong, too, unless you name correct ones (`trusted`).
result = plan_retraining(audited, changes, {}, method="ce", epochs=100).run()
print(f"accuracy: {result.before:.3f} before, {result.after:.3f} after")
print(f"warning: {result.warning}")
