"""Texts in a column of a table: find the mails in the wrong drawer, and sort new ones."""

import random

import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from noiseproof import NoisyLabelClassifier
from noiseproof.audit import audit, read_rows

# Mails with mistakes: one in six is in the wrong drawer. With a table of your own, begin below.
DRAWERS = {
    "invoice": ("the invoice", "my bill", "a payment", "the refund", "a charge on my card"),
    "delivery": ("the parcel", "my delivery", "the courier", "a shipment", "the tracking number"),
    "login": ("my password", "the login page", "my account", "the reset link", "a locked account"),
}
OPENINGS = ("Good morning.", "Hello again!", "Dear team,", "Hi there,", "To whom it may concern:")
STORIES = ("I have a question about {}, and {}.", "Something is wrong with {} since I saw {}.",
           "When will you look at {}? It has to do with {}.", "Nobody answers me about {} or {}.")  # fmt: skip
CLOSINGS = ("Please help.", "Thanks a lot!", "I wrote twice last week.", "Call me tomorrow.", "It is urgent, really.")
chance = random.Random(0)


def mails(number: int) -> pd.DataFrame:
    rows = []
    for _ in range(number):
        drawer = chance.choice(list(DRAWERS))
        story = chance.choice(STORIES).format(*chance.sample(DRAWERS[drawer], 2))
        rows.append((f"{chance.choice(OPENINGS)} {story} {chance.choice(CLOSINGS)}", drawer))
    return pd.DataFrame(rows, columns=["mail", "drawer"])


table, new = mails(300), mails(100)
truth = table["drawer"].copy()
for row in chance.sample(range(len(table)), len(table) // 6):
    table.loc[row, "drawer"] = chance.choice([name for name in DRAWERS if name != truth[row]])
table.to_csv("mails.csv", index=False)

# Audit by the words of the mails: TF-IDF of words and word pairs, nothing pretrained.
report = audit(read_rows("mails.csv", label="drawer", text="mail"))
print(report.summary()["verdict"])
issues = report.table().query("is_label_issue")
for row, why in issues[["row", "why"]].head(3).itertuples(index=False):
    print(f"{table['mail'][row]!r} is in {table['drawer'][row]!r}. {why}")
wrong = set(truth.index[table["drawer"] != truth])
print(f"named: {len(issues)}, of which wrong: {len(wrong & set(issues['row']))}, wrong in all: {len(wrong)}")

# Sort new mails by a model that learns from the table as it is, but not its mistakes.
words = ColumnTransformer([("mail", TfidfVectorizer(), "mail")], sparse_threshold=0)
model = make_pipeline(words, NoisyLabelClassifier()).fit(table[["mail"]], table["drawer"])
print(f"new mails in the right drawer: {model.score(new[['mail']], new['drawer']):.2f}")
