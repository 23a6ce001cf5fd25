"""What descriptions of the classes add to an audit of texts (`audit --describe`).

    python benchmarks/witness.py

Each set is audited with default settings three times: without descriptions, with the names of the
classes, and with the sentences below, which were written from the definitions of the classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import real
from timing import write_rows

from noiseproof.audit import audit, read_rows

PACKAGES = {
    "admin": "tools to administer a computer: users, disks, services, logs",
    "database": "database servers and clients, SQL",
    "editors": "editors of text and code, word processors",
    "games": "games and puzzles to play",
    "graphics": "viewers and editors of images, drawings and 3D models",
    "mail": "programs to send, receive, filter and read email",
    "math": "mathematics, statistics, algebra, plots",
    "net": "programs for networks: clients and servers, chat, downloads, monitors",
    "science": "science: biology, chemistry, physics, astronomy",
    "sound": "music and audio: players, recorders, synthesizers",
    "text": "tools that convert, format and search text and documents, dictionaries",
    "web": "web servers, browsers and sites",
}
OUT = Path(__file__).parent / "results" / "witness.json"
NAMES = {
    "trec.csv.gz": {
        "0": "description",
        "1": "entity",
        "2": "human",
        "3": "abbreviation",
        "4": "location",
        "5": "number",
    },
    "youtube.csv.gz": {"0": "ham", "1": "spam"},
    "sms asymmetric-next:rate=0.15": {"ham": "ham", "spam": "spam"},
    "sick.csv.gz": {name: name.lower() for name in ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")},
    "cause.csv.gz": {"no": "no cause", "yes": "cause"},
    "packages alike:rate=0.15": {name: name for name in PACKAGES},
}
SENTENCES = {
    "trec.csv.gz": {
        "0": "description, definition, manner or reason",
        "1": "entity: animal, food, product, thing",
        "2": "human: a person, individual, group",
        "3": "abbreviation, what does it stand for",
        "4": "location: city, country, place, state",
        "5": "number, date, count, money, how many",
    },
    "youtube.csv.gz": {
        "0": "a comment about the song or the video",
        "1": "spam: subscribe to my channel, visit my website, check out my link",
    },
    "sms asymmetric-next:rate=0.15": {
        "ham": "a message to a friend about meeting, home or work",
        "spam": "you have won a prize, call now to claim your free offer",
    },
    "sick.csv.gz": {
        "NEUTRAL": "the two sentences are about different things",
        "ENTAILMENT": "the second sentence says the same as the first",
        "CONTRADICTION": "the second sentence says that it is not so",
    },
    "cause.csv.gz": {
        "no": "no relation between the two terms",
        "yes": "a symptom, a side effect or a cause of a disease",
    },
    "packages alike:rate=0.15": PACKAGES,
}


def measure(name: str) -> list[real.Row]:
    """Return a row for each kind of description of one set."""
    given = real.load(real.FOLDER, name)
    assert given.data is not None
    table = real.planted.columns_of(given.data).assign(given=given.given)
    rows = []
    kinds = {"none": None, "names": NAMES[name], "sentences": SENTENCES[name]}
    for kind, describe in kinds.items():
        with real.Clock() as clock:
            read = read_rows(table, label="given", text=given.data.text, describe=describe)
            report = audit(read, device="cpu")
        issues = report.label_issues
        wrong = given.wrong[report.data.row]
        judged = real.figures(wrong, 1 - issues.quality, issues.is_issue, clock.wall)
        share = {"wrong": round(float(wrong.mean()), 4), "rate": round(issues.noise_rate, 4)}
        rows.append({"set": given.name, "describe": kind, **share, **judged})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args()
    rows = [row for name in NAMES for row in measure(name)]
    write_rows(OUT, rows)


if __name__ == "__main__":
    main()
