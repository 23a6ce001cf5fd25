"""Texts in a column of a table: find mails with the wrong topic, and classify new ones."""

import random

import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from noiseproof import NoisyLabelClassifier
from noiseproof.audit import audit, read_rows

# Mails with errors: one in six has the wrong topic. With your own table, start below.
TOPICS = {
    "invoice": ("the invoice", "my bill", "a payment", "the refund", "a charge on my card"),
    "delivery": ("the parcel", "my delivery", "the courier", "a shipment", "the tracking number"),
    "login": ("my password", "the login page", "my account", "the reset link", "a locked account"),
}
OPENINGS = ("Good morning.", "Hello again!", "Dear team,", "Hi there,", "To whom it may concern:")
STORIES = ("I have a question about {}, and {}.", "Something is wrong with {} since I saw {}.",
           "When will you look at {}? It has to do with {}.", "Nobody answers me about {} or {}.")  # fmt: skip
CLOSINGS = ("Please help.", "Thanks a lot!", "I wrote twice last week.", "Call me tomorrow.", "It is urgent, really.")
rng = random.Random(0)


def mails(number: int) -> pd.DataFrame:
    rows = []
    for _ in range(number):
        topic = rng.choice(list(TOPICS))
        story = rng.choice(STORIES).format(*rng.sample(TOPICS[topic], 2))
        rows.append((f"{rng.choice(OPENINGS)} {story} {rng.choice(CLOSINGS)}", topic))
    return pd.DataFrame(rows, columns=["mail", "topic"])


table, new = mails(300), mails(100)
truth = table["topic"].copy()
for row in rng.sample(range(len(table)), len(table) // 6):
    table.loc[row, "topic"] = rng.choice([name for name in TOPICS if name != truth[row]])
table.to_csv("mails.csv", index=False)

# Audit by the words of the mails: by pretrained word vectors with noiseproof[text] installed, else by TF-IDF.
report = audit(read_rows("mails.csv", label="topic", text="mail"))
print(report.summary()["verdict"])
issues = report.table().query("is_label_issue")
for row, why in issues[["row", "why"]].head(3).itertuples(index=False):
    print(f"{table['mail'][row]!r} is labelled {table['topic'][row]!r}. {why}")
wrong = set(truth.index[table["topic"] != truth])
print(f"flagged: {len(issues)}, of which wrong: {len(wrong & set(issues['row']))}, wrong in total: {len(wrong)}")

# Classify new mails by a model trained on the table as it is, which does not memorise its errors.
words = ColumnTransformer([("mail", TfidfVectorizer(), "mail")], sparse_threshold=0)
model = make_pipeline(words, NoisyLabelClassifier()).fit(table[["mail"]], table["topic"])
print(f"new mails with the right topic: {model.score(new[['mail']], new['topic']):.2f}")
