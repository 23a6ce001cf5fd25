"""The stages of judging labels: posterior → noise rate → interval → cut."""
