"""A scikit-learn pipeline whose last step does not memorise wrong labels."""

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from noiseproof import NoisyLabelClassifier

# Digits with missing pixels, a third of them with a wrong label. With your own data, start below.
random = np.random.default_rng(0)
x, truth = load_digits(return_X_y=True, as_frame=True)
x, names = x.mask(random.random(x.shape) < 0.02), truth.map("digit {}".format)
train_x, test_x, train_y, test_y = train_test_split(x, names, train_size=700, test_size=500, random_state=0)
given = train_y.where(random.random(len(train_y)) > 0.35, pd.Series(random.choice(names, len(x))))

# Any classifier can be the last step of a pipeline. NoisyLabelClassifier estimates the share of wrong labels and
# chooses a method accordingly.
for last in (LogisticRegression(max_iter=500), NoisyLabelClassifier()):
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), last).fit(train_x, given)
    print(f"{type(last).__name__}: {pipeline.score(test_x, test_y):.3f} on correct labels")
print(f"auto chose {last.method_}: {last.noise_rate_:.0%} of the labels look wrong")

# Searches work as usual. They score with the given labels, wrong ones included: small differences mean nothing.
search = GridSearchCV(
    make_pipeline(SimpleImputer(), NoisyLabelClassifier(epochs=10)),
    {"noisylabelclassifier__method": ["ce", "gce:q=0.7"]},
    cv=2,
).fit(train_x, given)
print(f"best by noisy labels: {search.best_params_['noisylabelclassifier__method']}")

# Save it. Loading runs no code from the files; the exported network needs neither noiseproof nor scikit-learn.
loaded = NoisyLabelClassifier.load(last.save("digits"))
inputs = pipeline[:-1].transform(test_x)
print(f"loaded: the same predictions, {bool((loaded.predict(inputs) == pipeline.predict(test_x)).all())}")
network = torch.export.load(last.export("digits.pt2")).module()
print(f"exported: {tuple(network(torch.tensor(inputs, dtype=torch.float32)).shape)} probabilities")
