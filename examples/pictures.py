"""A folder of pictures, one folder for each class: audit it, and move the pictures that are in the wrong folder."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from noiseproof.audit import audit, corrections, read_audit, read_rows, write_corrected
from noiseproof.review.page import file_page

# Pictures with errors: photos/three/18.png is a one. With your own folder, start below.
NAMES = ("zero", "one", "two", "three", "four")
images, digits = load_digits(n_class=5, return_X_y=True)
random = np.random.default_rng(0)
for number in range(200):
    label = digits[number] if random.random() > 0.1 else random.integers(5)
    folder = Path("photos", NAMES[label])
    folder.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray((images[number].reshape(8, 8) * 15).astype(np.uint8))
    picture.resize((32, 32), Image.Resampling.BICUBIC).save(folder / f"{number}.png")

# Audit. Features are learned from the pictures themselves; nothing is downloaded. Those of a pretrained network are
# better: read_rows("photos", backbone="timm:…") or read_rows("photos", embeddings=…).
report = audit(read_rows("photos"))
report.save("audit")
print(report.summary()["verdict"])
print(report.table().head(5)[["id", "given_label", "suggested_label"]].to_string(index=False))

# Review, without a server: one page that contains the pictures. The audit can be exported to other tools.
audited = read_audit("audit")
Path("review.html").write_text(file_page(audited), "utf-8")
report.export("fiftyone", "audit/fiftyone")
report.export("label-studio", "audit/label-studio.json")

# Correct. A new folder with each picture in the folder of its label; photos/ is not changed.
changes = corrections(audited, {}, accept_all=True, yes=True)
corrected = write_corrected(audited, changes, "corrected")


def misplaced(folder: Path) -> int:
    """The number of pictures in the folder of another digit."""
    stems = ((path.stem.partition("-")[0], path.parent.name) for path in folder.glob("*/*.png"))
    return sum(NAMES[digits[int(number)]] != name for number, name in stems)


print(f"misplaced pictures: {misplaced(Path('photos'))} before, {misplaced(corrected)} after")
