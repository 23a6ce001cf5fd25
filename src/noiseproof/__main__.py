"""``python -m noiseproof``."""

from noiseproof.cli import app

if __name__ == "__main__":
    app(prog_name="noiseproof")
