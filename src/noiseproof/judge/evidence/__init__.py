"""Evidence on labels: predictions of networks, neighbours, near-duplicates."""
